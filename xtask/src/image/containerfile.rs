//! `deploy/Containerfile`: the same images by podman or Docker.

use oci_spec::image::{ANNOTATION_LICENSES, ANNOTATION_TITLE, ANNOTATION_VERSION};

use super::programs::PROGRAMS;

/// Where it lies.
pub(crate) const PATH: &str = "deploy/Containerfile";

const HEAD: &str = "\
# Generated from `xtask/src/image` by `cargo xtask generate`; not edited by hand.
#
# The images that `cargo xtask image` makes, for those who build with podman or Docker. From the repository's root:
#     podman build --file deploy/Containerfile --target muster-webhook --tag muster-webhook .
# Each program is a target. Without the directory .git in the context, name the time of the commit:
#     --build-arg SOURCE_DATE_EPOCH=\"$(git log -1 --format=%ct)\"
";

/// The whole file. The compiler is the oldest that the workspace is for.
pub(crate) fn render() -> String {
    let rust = env!("CARGO_PKG_RUST_VERSION");
    let mut text = format!(
        "{HEAD}
FROM rust:{rust}-bookworm AS build
ARG SOURCE_DATE_EPOCH
WORKDIR /muster
COPY . .
RUN cargo xtask image --output /image && mv /image/rootfs/linux-* /rootfs
"
    );
    for program in &PROGRAMS {
        let (name, user) = (program.name, program.user);
        let (version, license) = (env!("CARGO_PKG_VERSION"), env!("CARGO_PKG_LICENSE"));
        text += &format!(
            "
FROM scratch AS {name}
COPY --from=build /rootfs/{name}/ /
LABEL {ANNOTATION_TITLE}={name} {ANNOTATION_VERSION}={version} {ANNOTATION_LICENSES}={license}
USER {user}
ENTRYPOINT [\"/{name}\"]
"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::root;

    #[test]
    fn it_names_the_programs_users_and_paths_of_the_images() {
        let written = fs::read_to_string(root().join(PATH)).unwrap();
        let stages: Vec<&str> = written.split("\nFROM scratch AS ").skip(1).collect();
        assert_eq!(stages.len(), PROGRAMS.len());
        for (stage, program) in stages.into_iter().zip(&PROGRAMS) {
            let lines = stage.lines().filter(|line| !line.is_empty());
            let lines: Vec<&str> = lines.filter(|line| !line.starts_with("LABEL ")).collect();
            let name = program.name;
            let wanted = [
                name.to_owned(),
                format!("COPY --from=build /rootfs/{name}/ /"),
                format!("USER {}", program.user),
                format!("ENTRYPOINT [\"/{name}\"]"),
            ];
            assert_eq!(lines, wanted);
            let title = format!("LABEL {ANNOTATION_TITLE}={name} ");
            assert!(stage.contains(&title), "{stage}");
        }
    }

    #[test]
    fn it_is_as_it_is_generated() {
        let written = fs::read_to_string(root().join(PATH)).unwrap();
        assert!(written == render(), "run `cargo xtask generate`");
        assert!(written.contains("\nFROM rust:1."));
    }
}
