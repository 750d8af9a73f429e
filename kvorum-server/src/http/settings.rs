//! `/admin/settings`: the node's settings, each with the source of its value.
//!
//! No setting is a secret. Tokens and secrets are in files; a setting has only the path.

use std::fmt::Write as _;

/// A setting as it is shown.
#[derive(Debug, Clone)]
pub struct ShownSetting {
    /// Its name, as in the flag.
    pub name: &'static str,
    /// Its value, as its source wrote it.
    pub value: String,
    /// Its default value.
    pub default: &'static str,
    /// The source of its value.
    pub origin: String,
    /// Its description.
    pub help: &'static str,
}

/// The settings: as a TOML file with comments, or one JSON object.
pub(super) fn render(settings: &[ShownSetting], json: bool) -> String {
    if json {
        let rows: Vec<_> = settings.iter().map(row).collect();
        return format!("{}\n", serde_json::json!({"settings": rows}));
    }
    settings.iter().fold(String::new(), |mut page, setting| {
        let _ = writeln!(page, "{} = {:?}  # {}", setting.name, setting.value, setting.origin);
        page
    })
}

fn row(setting: &ShownSetting) -> serde_json::Value {
    let ShownSetting { name, value, default, origin, help } = setting;
    serde_json::json!({"name": name, "value": value, "default": default, "origin": origin, "help": help})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both forms have the value and its source, whatever characters are in them.
    #[test]
    fn settings_have_their_origin() {
        let shown = ShownSetting {
            name: "data-dir",
            value: "/a \"b\"\n".to_owned(),
            default: "./data",
            origin: "flag --data-dir".to_owned(),
            help: "Keep data there",
        };
        assert_eq!(
            render(std::slice::from_ref(&shown), false),
            "data-dir = \"/a \\\"b\\\"\\n\"  # flag --data-dir\n"
        );
        let body: serde_json::Value = serde_json::from_str(&render(&[shown], true)).unwrap();
        assert_eq!(body["settings"][0]["value"], "/a \"b\"\n");
        assert_eq!(body["settings"][0]["origin"], "flag --data-dir");
    }
}
