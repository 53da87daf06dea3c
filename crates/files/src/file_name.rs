//! File names that Windows cannot hold.
//!
//! Windows opens a device for some names in every folder, writes another file than the one named for others, and fails
//! late for the rest. So names are checked before anything is computed.

/// Characters that no file name of Windows has. A colon would name a stream inside of the file before it.
const FORBIDDEN: [char; 9] = ['<', '>', ':', '"', '/', '\\', '|', '?', '*'];
/// Devices, whatever extension follows. `COM1` to `COM9` and `LPT1` to `LPT9` are devices too.
const DEVICES: [&str; 6] = ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"];

/// Why this system cannot hold a file called `name`, which is one part of a path; `None` if it can.
pub fn name_problem(name: &str) -> Option<String> {
    if cfg!(windows) { windows_name_problem(name) } else { None }
}

/// Why Windows cannot hold a file called `name`; `None` if it can.
pub fn windows_name_problem(name: &str) -> Option<String> {
    if let Some(found) = name.chars().find(|c| FORBIDDEN.contains(c) || c.is_ascii_control()) {
        return Some(format!("has the character {found:?}, which names of Windows cannot have"));
    }
    if name.ends_with(['.', ' ']) {
        return Some("ends in a dot or a space, which Windows removes".into());
    }
    let stem = name.split('.').next().unwrap_or_default().trim_end_matches(' ').to_uppercase();
    is_device(&stem).then(|| format!("is a name of the device {stem} on Windows"))
}

fn is_device(stem: &str) -> bool {
    let is_numbered = || {
        let number = stem.strip_prefix("COM").or_else(|| stem.strip_prefix("LPT"));
        number.is_some_and(|number| {
            matches!(number, "1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9" | "¹" | "²" | "³")
        })
    };
    DEVICES.contains(&stem) || is_numbered()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_and_forbidden_characters_are_found() {
        for (name, expected) in [
            ("CON", "device CON"),
            ("nul.png", "device NUL"),
            ("Aux .png", "device AUX"),
            ("com1.tar.gz", "device COM1"),
            ("lpt³.png", "device LPT³"),
            ("conout$.png", "device CONOUT$"),
            ("a:b.png", "':'"),
            ("what?.png", "'?'"),
            ("a\tb.png", "'\\t'"),
            ("a.png.", "a dot or a space"),
            ("a ", "a dot or a space"),
        ] {
            let problem = windows_name_problem(name).unwrap_or_default();
            assert!(problem.contains(expected), "{name}: {problem}");
            assert_eq!(name_problem(name).is_some(), cfg!(windows));
        }
    }

    #[test]
    fn other_names_are_fine() {
        for name in [
            "console.png",
            "com.png",
            "COM10.png",
            "com0.png",
            "null.png",
            "aux-1.png",
            ".con",
            "Äpfel und Öl.png",
            "a b.png",
        ] {
            assert_eq!(windows_name_problem(name), None, "{name}");
        }
    }
}
