//! Types of the options in Python.

use kiln_engine::{OptionKind, OptionRow};

/// The type of an option of a request.
pub fn python_type(row: &OptionRow) -> String {
    let literal = |names: Vec<&str>| {
        format!("Literal[{}]", names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", "))
    };
    match row.kind {
        OptionKind::Flag | OptionKind::Switch => "bool".into(),
        OptionKind::Whole { .. } | OptionKind::Side { .. } | OptionKind::Seed | OptionKind::Offset => "int".into(),
        OptionKind::Number { .. } => "float".into(),
        OptionKind::Size => "tuple[int, int] | str".into(),
        OptionKind::Choice(names) => literal(names()),
        OptionKind::Numbers => "Sequence[float] | str".into(),
        OptionKind::Folder | OptionKind::Model | OptionKind::Upscaler(_) => "StrPath".into(),
        OptionKind::File => "ImageLike".into(),
        OptionKind::Files => "Sequence[ImageLike]".into(),
        OptionKind::Borders => "Mapping[str, int] | str".into(),
        OptionKind::Loras | OptionKind::Controls | OptionKind::IpAdapters | OptionKind::Regions => {
            "Sequence[str | Mapping[str, Any]]".into()
        }
        _ => "str".into(),
    }
}
