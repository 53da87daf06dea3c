//! The fields of a job: the options of a request by any of their names, and `model` and `output`.

use kiln_scheduler::{MAX_NAME, short_name};

use crate::options::{OPTIONS, OptionGroup, OptionKind, OptionRow, find_option, nearest_option};

/// A field of a job.
#[derive(Debug, Clone, Copy)]
pub enum JobField {
    /// An option of the request.
    Option(&'static OptionRow),
    /// One of [`Self::OWN`].
    Own(usize),
}

impl JobField {
    /// The names of the fields that are not options of a request: the model, and a pattern for the file's name.
    pub const OWN: [&str; 2] = ["model", "output"];
    /// The model's name or path.
    pub const MODEL: Self = Self::Own(0);

    /// The field with this name. Case, hyphens and spaces around it do not matter.
    pub fn find(name: &str) -> Option<Self> {
        let plain = if name.len() > MAX_NAME { String::new() } else { name.trim().to_ascii_lowercase() };
        let own = Self::OWN.iter().position(|own| *own == plain).map(Self::Own);
        own.or_else(|| find_option(&plain).map(Self::Option))
    }

    /// [`Self::find`], with the nearest names if there is none.
    ///
    /// # Errors
    /// A message names the unknown field.
    pub fn named(name: &str) -> Result<Self, String> {
        Self::find(name).ok_or_else(|| {
            let (name, nearest) = (short_name(name.trim()), nearest_option(name, &Self::OWN));
            format!("unknown field `{name}`{nearest}")
        })
    }

    /// Its row in the table of options.
    pub fn row(self) -> Option<&'static OptionRow> {
        if let Self::Option(row) = self { Some(row) } else { None }
    }

    /// The type of an option.
    pub fn kind(self) -> Option<OptionKind> {
        self.row().map(|row| row.kind)
    }

    /// Its long name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Option(row) => row.name,
            Self::Own(i) => Self::OWN[i],
        }
    }
}

impl PartialEq for JobField {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

/// The fields of a job with a short help each, sorted by name: the name, its other names, and the help.
pub fn job_fields() -> Vec<(&'static str, Vec<&'static str>, String)> {
    let of_row = |row: &'static OptionRow| (row.name, row.names().skip(1).collect(), row.help());
    let mut all: Vec<_> = OPTIONS.iter().filter(|row| row.group != OptionGroup::Internal).map(of_row).collect();
    let model = "The model, as the run takes it. Default: that of the run.";
    let output = "The image's name in the folder, a .png, perhaps with {index} and {seed}.";
    all.extend(JobField::OWN.into_iter().zip([model, output]).map(|(name, help)| (name, Vec::new(), help.into())));
    all.sort_unstable_by_key(|(name, ..)| *name);
    all
}
