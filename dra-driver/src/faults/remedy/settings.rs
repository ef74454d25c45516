//! Which commands an administrator has given.

use std::time::Duration;

use serde::Deserialize;

use super::command::Template;

/// Longest that any of them may take.
const LONGEST_SECONDS: u32 = 86_400;

/// The commands, as the chart's values `driver.reset`, `driver.validation` and `driver.deepCheck` say them. Without one nothing of its kind is done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Remedies {
    reset: Reset,
    validation: Validation,
    deep_check: DeepCheck,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Reset {
    command: Vec<String>,
    deadline_seconds: u32,
    settle_seconds: u32,
    ignored_programs: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Validation {
    command: Vec<String>,
    deadline_seconds: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct DeepCheck {
    command: Vec<String>,
    every_seconds: u32,
}

impl Default for Reset {
    fn default() -> Self {
        Self {
            command: Vec::new(),
            deadline_seconds: 120,
            settle_seconds: 60,
            ignored_programs: Vec::new(),
        }
    }
}

impl Default for Validation {
    fn default() -> Self {
        Self {
            command: Vec::new(),
            deadline_seconds: 600,
        }
    }
}

/// A command, and how long it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The command.
    pub template: Template,
    /// How long it may take.
    pub deadline: Duration,
}

/// The command that resets GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetOrder {
    /// The command.
    pub order: Order,
    /// For how long a GPU that was reset is given to be found in order: its links are set up anew, and the fabric manager has to take it up.
    pub settle: Duration,
    /// Programs that may have a GPU open all the same, by their path: the command takes care of them.
    pub ignored_programs: Vec<String>,
}

impl Remedies {
    /// Reads them from JSON. An error says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let remedies: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        remedies.check()?;
        Ok(remedies)
    }

    fn check(&self) -> Result<(), String> {
        let commands = [
            ("reset.command", &self.reset.command),
            ("validation.command", &self.validation.command),
            ("deepCheck.command", &self.deep_check.command),
        ];
        for (name, command) in commands {
            Template::read(command).map_err(|error| format!("{name}: {error}"))?;
        }
        let deadlines = [
            ("reset.deadlineSeconds", self.reset.deadline_seconds),
            ("reset.settleSeconds", self.reset.settle_seconds),
            (
                "validation.deadlineSeconds",
                self.validation.deadline_seconds,
            ),
        ];
        for (name, seconds) in deadlines {
            if !(1..=LONGEST_SECONDS).contains(&seconds) {
                return Err(format!(
                    "{name}: {seconds} is not from 1 to {LONGEST_SECONDS}"
                ));
            }
        }
        if self.deep_check.every_seconds > 0 && self.deep_check().is_none() {
            let message = "deepCheck.everySeconds needs deepCheck.command or validation.command";
            return Err(message.to_owned());
        }
        Ok(())
    }

    /// The command that resets GPUs.
    pub fn reset(&self) -> Option<ResetOrder> {
        let order = order(&self.reset.command, self.reset.deadline_seconds)?;
        // The chart writes an empty list as one empty entry.
        let ignored = self.reset.ignored_programs.iter();
        Some(ResetOrder {
            order,
            settle: Duration::from_secs(u64::from(self.reset.settle_seconds)),
            ignored_programs: ignored.filter(|it| !it.is_empty()).cloned().collect(),
        })
    }

    /// The command that has to find a GPU in order before its fault is over.
    pub fn validation(&self) -> Option<Order> {
        order(&self.validation.command, self.validation.deadline_seconds)
    }

    /// The command that checks GPUs that nobody uses, and how often each: its own, else that of the validation.
    pub fn deep_check(&self) -> Option<(Order, Duration)> {
        let every = self.deep_check.every_seconds;
        let seconds = self.validation.deadline_seconds;
        let own = order(&self.deep_check.command, seconds).or_else(|| self.validation());
        let every = (every > 0).then(|| Duration::from_secs(u64::from(every)));
        own.zip(every)
    }
}

fn order(command: &[String], seconds: u32) -> Option<Order> {
    Some(Order {
        template: Template::read(command).ok().flatten()?,
        deadline: Duration::from_secs(u64::from(seconds)),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &serde_json::Value) -> Result<Remedies, String> {
        Remedies::parse(&value.to_string())
    }

    #[test]
    fn without_commands_there_are_no_remedies() {
        for text in [
            json!({}),
            json!({"reset": {"command": []}, "deepCheck": {"everySeconds": 0}}),
        ] {
            let remedies = read(&text).unwrap();
            assert_eq!(remedies.reset(), None);
            assert_eq!(remedies.validation(), None);
            assert_eq!(remedies.deep_check(), None);
        }
    }

    #[test]
    fn a_deep_check_runs_its_own_command_or_that_of_the_validation() {
        let validation = json!({"command": ["/bin/check", "{uuid}"], "deadlineSeconds": 30});
        for (own, expected) in [
            (json!([]), "/bin/check"),
            (json!(["/bin/deep", "{pci}"]), "/bin/deep"),
        ] {
            let deep = json!({"command": own, "everySeconds": 60});
            let remedies = read(&json!({"validation": validation, "deepCheck": deep})).unwrap();
            let (check, every) = remedies.deep_check().unwrap();
            assert_eq!(check.template.program(), expected);
            assert_eq!(check.deadline, Duration::from_secs(30));
            assert_eq!(every, Duration::from_mins(1));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, told) in [
            (json!({"resets": {}}), "unknown field `resets`"),
            (json!({"reset": {"command": [""]}}), "reset.command"),
            (json!({"reset": {"command": ["/r", "{gpu}"]}}), "{gpu}"),
            (
                json!({"deepCheck": {"command": ["/r"]}}),
                "deepCheck.command: \"/r\" is not told which GPU",
            ),
            (
                json!({"reset": {"deadlineSeconds": 0}}),
                "reset.deadlineSeconds: 0",
            ),
            (
                json!({"reset": {"settleSeconds": 0}}),
                "reset.settleSeconds: 0",
            ),
            (json!({"validation": {"deadlineSeconds": 86_401}}), "86401"),
            (
                json!({"deepCheck": {"everySeconds": 60}}),
                "needs deepCheck.command",
            ),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
