//! The programs that are shipped, each as an image of its own.

/// A program and what its image must offer besides what it links to.
#[derive(Debug)]
pub(crate) struct Program {
    /// Name of the package, of the executable and of the image: `/NAME` is the entry point.
    pub(crate) name: &'static str,
    /// Who runs it, as `UID:GID`.
    pub(crate) user: &'static str,
    /// Libraries that something needs which the program loads while it runs.
    pub(crate) loads: &'static [&'static str],
    /// Packages whose programs lie beside it as `/NAME`, for it to install on the node. They are linked statically: they run on
    /// whatever system that is.
    pub(crate) tools: &'static [&'static str],
}

/// A user without rights and without a name on any node; the chart's `runAsUser`.
pub(crate) const UNPRIVILEGED: &str = "65532:65532";

/// Root: the driver writes sockets into the kubelet's directories, and opens device nodes.
const ROOT: &str = "0:0";

/// What NVIDIA's `libnvidia-ml.so.1` of the node needs. It is older than the glibc that merged these into `libc.so.6`.
const NVML_NEEDS: [&str; 4] = ["libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"];

/// All of them.
pub(crate) const PROGRAMS: [Program; 4] = [
    Program {
        name: "muster-controller",
        user: UNPRIVILEGED,
        loads: &[],
        tools: &[],
    },
    Program {
        name: "muster-webhook",
        user: UNPRIVILEGED,
        loads: &[],
        tools: &[],
    },
    Program {
        name: "muster-extender",
        user: UNPRIVILEGED,
        loads: &[],
        tools: &[],
    },
    Program {
        name: "muster-dra-driver",
        user: ROOT,
        loads: &NVML_NEEDS,
        tools: &["muster-cdi-hook"],
    },
];

impl Program {
    /// The program of this name.
    pub(crate) fn named(name: &str) -> Result<&'static Self, String> {
        let found = PROGRAMS.iter().find(|program| program.name == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = PROGRAMS.iter().map(|program| program.name).collect();
            format!("{name:?} is not shipped; what is: {}", names.join(", "))
        })
    }

    /// Everything in the image that can be run: the program first.
    pub(crate) fn executables(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.tools.iter().copied())
    }

    /// Where the image is kept: the chart's `image.repository`, followed by the program's own part of its name.
    pub(crate) fn repository(&self, prefix: &str) -> String {
        format!(
            "{prefix}{}",
            self.name.strip_prefix("muster").unwrap_or(self.name)
        )
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use super::*;
    use crate::root;

    /// All templates of the chart, one after the other.
    fn templates() -> String {
        let directory = root().join("deploy/helm/muster/templates");
        let files = fs::read_dir(directory).unwrap();
        let files = files.filter_map(|file| fs::read_to_string(file.unwrap().path()).ok());
        files.collect()
    }

    #[test]
    fn the_chart_starts_exactly_the_programs_that_are_shipped() {
        let templates = templates();
        let started: BTreeSet<&str> = templates
            .lines()
            .filter_map(|line| line.trim().strip_prefix("command: [/"))
            .filter_map(|rest| rest.split([',', ']']).next())
            .collect();
        let shipped: BTreeSet<&str> = PROGRAMS.iter().map(|program| program.name).collect();
        assert_eq!(started, shipped);
    }

    #[test]
    fn the_chart_runs_unprivileged_programs_as_the_user_of_their_image() {
        let (user, group) = UNPRIVILEGED.split_once(':').unwrap();
        let templates = templates();
        assert!(templates.contains(&format!("runAsUser: {user}")));
        assert!(templates.contains(&format!("runAsGroup: {group}")));
    }

    #[test]
    fn an_image_is_named_after_the_charts_repository_and_its_program() {
        let driver = Program::named("muster-dra-driver").unwrap();
        assert_eq!(
            driver.repository("example.com/muster"),
            "example.com/muster-dra-driver"
        );
        let unknown = Program::named("muster").unwrap_err();
        assert!(unknown.contains("muster-webhook"), "{unknown}");
    }
}
