//! Compiles what is shipped, so that nothing of this machine is in it.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use memchr::memmem;

use super::{
    libraries,
    platform::Platform,
    programs::{PROGRAMS, Program},
};
use crate::build::{self, Artifact};

/// Features that only tests turn on. In what ships they would let it be made to die, or to break its own rules.
const NEVER_SHIPPED: [&str; 3] = ["failpoints", "injected-bugs", "test-util"];

/// What is written where a program in C says when it was compiled.
const NOT_TOLD: &str = "not told";

/// The programs for a platform.
#[derive(Debug)]
pub(crate) struct Compiled {
    executables: BTreeMap<&'static str, PathBuf>,
    /// Everything that they were made of; unknown where somebody else built them.
    pub(crate) artifacts: Option<Vec<Artifact>>,
}

/// A directory of this machine, and what stands for it in panics and assertions.
#[derive(Debug, PartialEq, Eq)]
struct Remapped {
    from: PathBuf,
    to: String,
}

/// Compiles all programs, whichever are wanted: cargo unifies features over what it is asked for, so alone each would be
/// another program, with another digest.
pub(crate) fn compile(
    root: &Path,
    target_directory: &Path,
    platform: Platform,
    rust: &Rust,
) -> Result<Compiled> {
    let remapped = remapped(root, target_directory, &cargo_home()?, rust)?;
    let mut command = cargo(root, platform, &remapped, &["build", "--bins"]);
    for program in &PROGRAMS {
        command.args(["--package", program.name]);
    }
    let mut artifacts =
        build::artifacts(&mut command).with_context(|| format!("building {}", platform.name()))?;
    for tool in PROGRAMS.iter().flat_map(|program| program.tools) {
        let mut command = cargo(root, platform, &remapped, &["rustc", "--bin", tool]);
        command.args(["--package", tool, "--", "-C", "target-feature=+crt-static"]);
        artifacts
            .extend(build::artifacts(&mut command).with_context(|| format!("building {tool}"))?);
    }
    refuse_test_features(&artifacts)?;
    let mut executables = BTreeMap::new();
    for program in &PROGRAMS {
        for name in program.executables() {
            let path = artifacts
                .iter()
                .filter(|artifact| artifact.target.name == name)
                .find_map(|artifact| artifact.executable.clone())
                .with_context(|| format!("cargo built no program {name}"))?;
            let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            refuse_local_paths(name, &bytes, &remapped)?;
            if name != program.name {
                refuse_libraries(name, &path, platform)?;
            }
            executables.insert(name, path);
        }
    }
    Ok(Compiled {
        executables,
        artifacts: Some(artifacts),
    })
}

/// A build for the platform, in which nothing names this machine.
fn cargo(root: &Path, platform: Platform, remapped: &[Remapped], arguments: &[&str]) -> Command {
    let mut command = build::cargo();
    let target = platform.target().replace('-', "_");
    command
        .args(arguments)
        .args([build::MESSAGES, "--locked"])
        .args(["--profile", "dist", "--target", platform.target()])
        .current_dir(root)
        .env("CARGO_ENCODED_RUSTFLAGS", rust_flags(remapped))
        .env(format!("CFLAGS_{target}"), quoted(&c_flags(remapped)))
        .env("CC_SHELL_ESCAPED_FLAGS", "1");
    // Crates that compile C would add what this machine says to it.
    for name in ["CFLAGS", "HOST_CFLAGS", "TARGET_CFLAGS"] {
        command.env_remove(name);
    }
    command.env_remove(format!("CFLAGS_{}", platform.target()));
    if let Some(linker) = platform.cross_linker() {
        let target = target.to_uppercase();
        command.env(format!("CARGO_TARGET_{target}_LINKER"), linker);
    }
    command
}

impl Compiled {
    /// Programs that were built before, in whatever way: for tests, which have some already.
    pub(crate) fn found(directory: &Path) -> Self {
        let names = PROGRAMS.iter().flat_map(Program::executables);
        Self {
            executables: names.map(|name| (name, directory.join(name))).collect(),
            artifacts: None,
        }
    }

    /// The file of a program.
    pub(crate) fn executable(&self, name: &str) -> Result<&Path> {
        let path = self.executables.get(name);
        path.map(PathBuf::as_path)
            .with_context(|| format!("{name} is not among the programs"))
    }
}

/// The compiler.
#[derive(Debug)]
pub(crate) struct Rust {
    /// Its version.
    pub(crate) release: String,
    /// The commit under whose name its standard library was compiled.
    commit: String,
    /// Where it is installed.
    sysroot: PathBuf,
}

impl Rust {
    /// Asks the compiler that cargo would take.
    pub(crate) fn installed() -> Result<Self> {
        let text = ask(&["--version", "--verbose"])?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::to_owned)
                .with_context(|| format!("rustc does not say its {name}"))
        };
        Ok(Self {
            release: field("release: ")?,
            commit: field("commit-hash: ")?,
            sysroot: PathBuf::from(ask(&["--print", "sysroot"])?.trim()),
        })
    }
}

fn ask(arguments: &[&str]) -> Result<String> {
    let output = Command::new("rustc")
        .args(arguments)
        .output()
        .context("starting rustc")?;
    Ok(String::from_utf8(output.stdout)?)
}

fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = env::var_os("CARGO_HOME") {
        return Ok(PathBuf::from(home));
    }
    let home = env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?;
    Ok(Path::new(&home).join(".cargo"))
}

/// What must not be seen in a program, the more special after the more general: the last that fits is taken.
fn remapped(
    root: &Path,
    target_directory: &Path,
    cargo_home: &Path,
    rust: &Rust,
) -> Result<Vec<Remapped>> {
    let map = |from: PathBuf, to: &str| Remapped {
        from,
        to: to.to_owned(),
    };
    let mut remapped = vec![
        map(cargo_home.to_path_buf(), "/cargo"),
        map(root.to_path_buf(), "/muster"),
        // What build scripts write is compiled from there, wherever CARGO_TARGET_DIR says that it is.
        map(target_directory.to_path_buf(), "/muster/target"),
        // With the source of the standard library installed, the compiler names its files there.
        map(
            rust.sysroot.join("lib/rustlib/src/rust"),
            &format!("/rustc/{}", rust.commit),
        ),
    ];
    // Each registry has a directory whose name says where it is reached.
    let registries = cargo_home.join("registry/src");
    if registries.is_dir() {
        for registry in fs::read_dir(&registries)? {
            remapped.push(map(registry?.path(), "/crates"));
        }
    }
    remapped.sort_by(|a, b| a.from.cmp(&b.from));
    Ok(remapped)
}

/// Separated as cargo takes it: paths may hold spaces.
fn rust_flags(remapped: &[Remapped]) -> OsString {
    let mut flags = OsString::new();
    for Remapped { from, to } in remapped {
        if !flags.is_empty() {
            flags.push("\u{1f}");
        }
        flags.push("--remap-path-prefix=");
        flags.push(from);
        flags.push("=");
        flags.push(to);
    }
    flags
}

/// The allocator has the compiler write the day and the time of its build into the program. It is told neither. SOURCE_DATE_EPOCH
/// would give it those of the commit, but cargo keeps what was compiled, and then the digest would tell which commit that was.
fn c_flags(remapped: &[Remapped]) -> Vec<OsString> {
    let mut flags = vec![OsString::from("-Wno-builtin-macro-redefined")];
    for time in ["__DATE__", "__TIME__", "__TIMESTAMP__"] {
        flags.push(format!("-D{time}=\"{NOT_TOLD}\"").into());
    }
    for Remapped { from, to } in remapped {
        let mut flag = OsString::from("-ffile-prefix-map=");
        flag.push(from);
        flag.push("=");
        flag.push(to);
        flags.push(flag);
    }
    flags
}

/// As a shell takes them: paths may hold spaces here, too.
fn quoted(flags: &[OsString]) -> String {
    let quoted = flags.iter().map(|flag| {
        let flag = flag.to_string_lossy().replace('\'', r"'\''");
        format!("'{flag}'")
    });
    quoted.collect::<Vec<_>>().join(" ")
}

fn refuse_test_features(artifacts: &[Artifact]) -> Result<()> {
    for artifact in artifacts {
        let features = artifact.features.iter();
        let wrong = features
            .filter(|feature| NEVER_SHIPPED.contains(&feature.as_str()))
            .collect::<Vec<_>>();
        if !wrong.is_empty() && !artifact.runs_in_the_compiler() {
            let package = &artifact.package_id;
            bail!("{package} was built with {wrong:?}, which only tests may turn on");
        }
    }
    Ok(())
}

fn refuse_libraries(tool: &str, path: &Path, platform: Platform) -> Result<()> {
    let needed = libraries::closure(path, &[], &platform.library_directories())?;
    if let Some(library) = needed.first() {
        let library = &library.in_image;
        bail!(
            "{tool} needs {library}: it is to run on nodes, which may lack it, so it must be linked statically"
        );
    }
    Ok(())
}

fn refuse_local_paths(program: &str, bytes: &[u8], remapped: &[Remapped]) -> Result<()> {
    // What lies where its name is mapped to is called the same wherever it is built, as in the Containerfile.
    let local = remapped.iter().filter(|map| map.from != Path::new(&map.to));
    for Remapped { from, .. } in local {
        let path = from.as_os_str().as_encoded_bytes();
        if memmem::find(bytes, path).is_some() {
            let path = from.display();
            bail!(
                "{program} names {path}: built elsewhere, it would have another digest. A C library or a build script takes no heed of \
                 the prefixes that are mapped"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{build::Target, image::containerfile};

    fn rust() -> Rust {
        Rust {
            release: "1.95.0".to_owned(),
            commit: "abc".to_owned(),
            sysroot: PathBuf::from("/rust/toolchain"),
        }
    }

    #[test]
    fn no_directory_of_this_machine_is_left_unnamed() {
        let home = tempfile::tempdir().unwrap();
        let registry = home.path().join("registry/src/index-1949cf8c");
        fs::create_dir_all(&registry).unwrap();
        let target = Path::new("/var/cache/target");
        let mapped = remapped(Path::new("/home/me/muster"), target, home.path(), &rust()).unwrap();
        let position = |path: &Path| mapped.iter().position(|map| map.from == path);
        let (general, special) = (position(home.path()), position(&registry));
        assert!(general.is_some() && general < special, "{mapped:?}");
        assert_eq!(mapped[special.unwrap()].to, "/crates");

        let flags = rust_flags(&mapped).into_string().unwrap();
        let flags: Vec<&str> = flags.split('\u{1f}').collect();
        assert_eq!(flags.len(), 5);
        assert!(flags.contains(&"--remap-path-prefix=/var/cache/target=/muster/target"));
        assert!(flags.contains(&"--remap-path-prefix=/home/me/muster=/muster"));
        let source = "--remap-path-prefix=/rust/toolchain/lib/rustlib/src/rust=/rustc/abc";
        assert!(flags.contains(&source));
        let c = c_flags(&mapped);
        let prefix = OsString::from("-ffile-prefix-map=/home/me/muster=/muster");
        assert!(c.contains(&prefix), "{c:?}");
    }

    /// A program that says where its source is, compiled with these flags.
    fn compiled_in(directory: &Path, flags: &OsString, further: &[&str]) -> Vec<u8> {
        let source = directory.join("where.rs");
        fs::write(&source, "fn main() { println!(\"{}\", file!()); }").unwrap();
        let program = directory.join("where");
        let flags = flags.to_str().unwrap().split('\u{1f}');
        let status = Command::new("rustc")
            .args(flags.filter(|flag| !flag.is_empty()))
            .args(further)
            .args(["-C", "strip=symbols", "-o"])
            .args([&program, &source])
            .status();
        assert!(status.unwrap().success());
        fs::read(program).unwrap()
    }

    #[test]
    fn the_compiler_maps_what_would_be_refused() {
        let directory = tempfile::tempdir().unwrap();
        let rust = Rust::installed().unwrap();
        let nowhere = Path::new("/nonexistent");
        let mapped = remapped(directory.path(), nowhere, nowhere, &rust).unwrap();
        let as_it_is = compiled_in(directory.path(), &OsString::new(), &[]);
        refuse_local_paths("where", &as_it_is, &mapped).unwrap_err();
        let program = compiled_in(directory.path(), &rust_flags(&mapped), &[]);
        refuse_local_paths("where", &program, &mapped).unwrap();
        assert!(memmem::find(&program, b"/muster/where.rs").is_some());
    }

    /// Something that says when it was compiled, and where, compiled with these flags.
    fn c_compiled_in(directory: &Path, flags: &[OsString]) -> Vec<u8> {
        let source = directory.join("when.c");
        let object = directory.join("when.o");
        fs::write(
            &source,
            "const char when[] = __DATE__ \", \" __TIME__ \" in \" __FILE__;",
        )
        .unwrap();
        let status = Command::new("cc")
            .args(flags)
            .args(["-Werror", "-c", "-o"])
            .args([&object, &source])
            .status();
        assert!(status.unwrap().success());
        fs::read(object).unwrap()
    }

    #[test]
    fn what_is_written_in_c_tells_neither_when_nor_where_it_was_compiled() {
        let directory = tempfile::tempdir().unwrap();
        let nowhere = Path::new("/nonexistent");
        let mapped = remapped(directory.path(), nowhere, nowhere, &rust()).unwrap();
        let wanted = b"not told, not told in /muster/when.c";
        let as_it_is = c_compiled_in(directory.path(), &[]);
        assert!(memmem::find(&as_it_is, wanted).is_none());
        let object = c_compiled_in(directory.path(), &c_flags(&mapped));
        assert!(memmem::find(&object, wanted).is_some());
    }

    /// As cargo's crates for C take them apart.
    #[test]
    fn flags_for_c_come_through_a_shell_as_they_were() {
        let flags = c_flags(&[Remapped {
            from: PathBuf::from("/home/it's me/muster"),
            to: "/muster".to_owned(),
        }]);
        let script = format!("printf '%s\\n' {}", quoted(&flags));
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        let told: Vec<OsString> = told.lines().map(OsString::from).collect();
        assert_eq!(told, flags);
    }

    #[test]
    fn a_build_in_the_directory_of_the_containerfile_is_not_refused() {
        let text = containerfile::render();
        let directory = text.lines().find_map(|line| line.strip_prefix("WORKDIR "));
        let root = Path::new(directory.unwrap());
        let cargo_home = Path::new("/usr/local/cargo");
        let mapped = remapped(root, &root.join("target"), cargo_home, &rust()).unwrap();
        let program =
            b"/muster/engine/src/lib.rs /muster/target/out/dra.rs /crates/serde/src/lib.rs";
        refuse_local_paths("muster-webhook", program, &mapped).unwrap();
        let local = b"/usr/local/cargo/registry/src/serde/src/lib.rs";
        refuse_local_paths("muster-webhook", local, &mapped).unwrap_err();
    }

    #[test]
    fn a_tool_for_nodes_is_linked_statically_or_refused() {
        let directory = tempfile::tempdir().unwrap();
        let native = Platform::native();
        let tool = directory.path().join("where");
        compiled_in(directory.path(), &OsString::new(), &[]);
        let error = refuse_libraries("tool", &tool, native).unwrap_err();
        assert!(error.to_string().contains("tool needs /"), "{error}");
        let is_static = ["-C", "target-feature=+crt-static"];
        compiled_in(directory.path(), &OsString::new(), &is_static);
        refuse_libraries("tool", &tool, native).unwrap();
    }

    #[test]
    fn a_program_that_names_a_local_path_is_refused() {
        let mapped = [Remapped {
            from: PathBuf::from("/home/me/muster"),
            to: "/muster".to_owned(),
        }];
        let local = b"..panicked at /home/me/muster/engine/src/lib.rs..";
        let error = refuse_local_paths("muster-webhook", local, &mapped).unwrap_err();
        assert!(error.to_string().contains("/home/me/muster"));
        refuse_local_paths("muster-webhook", b"at /muster/engine/src/lib.rs", &mapped).unwrap();
    }

    #[test]
    fn features_of_tests_are_refused() {
        let artifact = |feature: &str, kind: &str| Artifact {
            package_id: "muster-controller".to_owned(),
            features: vec![feature.to_owned()],
            target: Target {
                kind: vec![kind.to_owned()],
                ..Target::default()
            },
            ..Artifact::default()
        };
        let error = refuse_test_features(&[artifact("failpoints", "lib")]).unwrap_err();
        assert!(error.to_string().contains("failpoints"));
        refuse_test_features(&[artifact("default", "lib")]).unwrap();
        refuse_test_features(&[artifact("test-util", "custom-build")]).unwrap();
    }

    #[test]
    fn the_installed_compiler_says_its_version_and_commit() {
        let rust = Rust::installed().unwrap();
        assert!(rust.release.starts_with("1."), "{rust:?}");
        assert_eq!(rust.commit.len(), 40, "{rust:?}");
        assert!(rust.sysroot.is_dir(), "{rust:?}");
    }
}
