//! `cargo xtask image`: an OCI image of each program, without a daemon and without a registry.

mod compile;
pub(crate) mod containerfile;
mod contents;
mod digest;
mod layer;
mod layout;
mod libraries;
mod origin;
mod platform;
mod programs;
mod sbom;
mod start;
mod table;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use self::{
    compile::{Compiled, Rust},
    layer::Layer,
    layout::{About, PlatformImage},
    origin::Origin,
    platform::Platform,
    programs::{PROGRAMS, Program},
    sbom::Subject,
    start::Start,
    table::Row,
};
use crate::{
    metadata::{self, Metadata, Package},
    root,
};

/// Arguments of `cargo xtask image`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only the image of this program; may be repeated. [default: all]
    #[arg(long, value_parser = Program::named)]
    program: Vec<&'static Program>,
    /// Platforms, separated by commas. [default: those for which this machine has what it takes]
    #[arg(long, value_delimiter = ',', value_parser = Platform::named)]
    platform: Vec<Platform>,
    /// Where the images are written: a directory and an archive for each, and the unpacked files under `rootfs`.
    #[arg(long, value_name = "DIR", default_value = "target/image")]
    output: PathBuf,
    /// Packs programs that lie there instead of compiling them, for tests: such an image is neither reproducible nor to be shipped.
    #[arg(long, value_name = "DIR", conflicts_with = "platform")]
    executables: Option<PathBuf>,
    /// What the names of the images begin with. [default: `image.repository` of the chart]
    #[arg(long)]
    repository: Option<String>,
}

/// What all images are made from.
struct Making<'a> {
    output: &'a Path,
    repository: &'a str,
    origin: Origin,
    rust: Rust,
}

/// What was compiled for a platform, and what cargo says of it.
struct Built {
    platform: Platform,
    compiled: Compiled,
    metadata: Metadata,
}

/// Compiles the programs, makes the images, starts each once, and prints what came out.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let root = root();
    let mut platforms = arguments.platform.clone();
    if arguments.executables.is_some() {
        platforms.extend(Platform::ALL.into_iter().filter(|it| it.is_native()));
    }
    let is_open = platforms.is_empty();
    for platform in Platform::ALL {
        let is_wanted = platforms.contains(&platform);
        let missing = platform.missing()?.join("; ");
        if missing.is_empty() && is_open {
            platforms.push(platform);
        } else if !missing.is_empty() && is_wanted {
            bail!(
                "{} cannot be built here, missing: {missing}",
                platform.name()
            );
        } else if !missing.is_empty() && is_open {
            eprintln!("{}: not built here, missing: {missing}", platform.name());
        }
    }
    let repository = match &arguments.repository {
        Some(repository) => repository.clone(),
        None => chart_repository(&root)?,
    };
    let making = Making {
        output: &arguments.output,
        repository: &repository,
        origin: Origin::of(&root)?,
        rust: Rust::installed()?,
    };
    create_output(&arguments.output)?;
    let mut built = Vec::new();
    for platform in ordered(platforms) {
        let filter = ["--locked", "--filter-platform", platform.target()];
        let metadata = metadata::read(&root, &filter)?;
        let target_directory = &metadata.target_directory;
        let compiled = match &arguments.executables {
            Some(directory) => Compiled::found(directory),
            None => compile::compile(&root, target_directory, platform, &making.rust)?,
        };
        built.push(Built {
            platform,
            compiled,
            metadata,
        });
    }
    let named: BTreeSet<&str> = arguments
        .program
        .iter()
        .map(|program| program.name)
        .collect();
    let is_wanted = |program: &&Program| named.is_empty() || named.contains(program.name);
    let mut rows = Vec::new();
    for program in PROGRAMS.iter().filter(is_wanted) {
        rows.extend(making.image(program, &built)?);
    }
    print!("{}", table::render(&rows, &arguments.output));
    Ok(())
}

/// Makes the directory where there is none, as one that git does not look into: images of before that lie in the repository are no
/// difference from its commit, and change no label.
fn create_output(directory: &Path) -> Result<()> {
    let context = || format!("creating {}", directory.display());
    fs::create_dir_all(directory).with_context(context)?;
    let is_empty = fs::read_dir(directory)
        .with_context(context)?
        .next()
        .is_none();
    if is_empty {
        fs::write(directory.join(".gitignore"), "*\n").with_context(context)?;
    }
    Ok(())
}

/// Each once, in one order: the digest over all platforms does not hang on how they were named.
fn ordered(mut platforms: Vec<Platform>) -> Vec<Platform> {
    platforms.sort_unstable();
    platforms.dedup();
    platforms
}

impl Making<'_> {
    /// Writes the image of one program, for all platforms.
    fn image(&self, program: &'static Program, built: &[Built]) -> Result<Vec<Row>> {
        let mut images = Vec::new();
        let mut starts = Vec::new();
        let mut package = None;
        for built in built {
            let image = self.platform_image(program, built)?;
            starts.push(self.start(program, &image)?);
            images.push(image);
            package = Some(find(&built.metadata, program)?);
        }
        let package = package.context("no platform is built")?;
        let about = About {
            reference: format!(
                "{}:{}",
                program.repository(self.repository),
                package.version
            ),
            entrypoint: format!("/{}", program.name),
            user: program.user.to_owned(),
            created: self.origin.created.clone(),
            labels: self.origin.labels(package),
        };
        let written = layout::write(&self.output.join(program.name), &about, &images)?;
        let platforms = written.manifests.into_iter().zip(images).zip(starts);
        let rows = platforms.map(|((manifest, image), start)| Row {
            program: program.name,
            reference: about.reference.clone(),
            index: written.index.clone(),
            unpacked_bytes: image
                .layers
                .iter()
                .map(|(layer, _)| layer.unpacked_bytes)
                .sum(),
            manifest,
            start,
        });
        Ok(rows.collect())
    }

    fn platform_image(&self, program: &Program, built: &Built) -> Result<PlatformImage> {
        let executable = built.compiled.executable(program.name)?;
        let directories = built.platform.library_directories();
        let libraries = libraries::closure(executable, program.loads, &directories)?;
        let linked = libraries.iter().map(|library| library.here.as_path());
        let system = contents::sources_of(linked)?;
        let archives = if program.tools.is_empty() {
            Vec::new()
        } else {
            built.platform.static_archives()?
        };
        let archives = contents::sources_of(archives.iter().map(PathBuf::as_path))?;
        let bytes = fs::read(executable)?;
        let subject = Subject {
            program: program.name,
            tools: program.tools,
            executable: &bytes,
            created: &self.origin.created,
            rust: &self.rust.release,
            system: &system,
            archives: &archives,
        };
        let sbom = sbom::spdx(
            &built.metadata,
            built.compiled.artifacts.as_deref(),
            &subject,
        )?;
        let version = &find(&built.metadata, program)?.version;
        let packages = [system.packages.as_slice(), archives.packages.as_slice()].concat();
        let base = contents::base(&libraries, &packages)?.pack()?;
        let mut executables = Vec::new();
        for name in program.executables() {
            executables.push((name, built.compiled.executable(name)?));
        }
        let top = contents::program(program.name, version, &executables, &sbom)?.pack()?;
        Ok(PlatformImage {
            platform: built.platform,
            layers: vec![
                (base, "the libraries that the program links to".to_owned()),
                (top, format!("{} and its SBOM", program.name)),
            ],
        })
    }

    fn start(&self, program: &Program, image: &PlatformImage) -> Result<Start> {
        let platform = image.platform.name().replace('/', "-");
        let directory = self.output.join("rootfs").join(platform).join(program.name);
        let layers: Vec<&Layer> = image.layers.iter().map(|(layer, _)| layer).collect();
        start::unpack(layers, &directory)?;
        start::start(program, image.platform, &directory)
    }
}

fn find<'a>(metadata: &'a Metadata, program: &Program) -> Result<&'a Package> {
    let mut members = metadata
        .packages
        .iter()
        .filter(|package| package.source.is_none());
    members
        .find(|package| package.name == program.name)
        .with_context(|| format!("no package is named {}", program.name))
}

/// What the chart pulls, so that an image that is imported is found under the name that pods ask for.
fn chart_repository(root: &Path) -> Result<String> {
    #[derive(Deserialize)]
    struct Values {
        image: Image,
    }
    #[derive(Deserialize)]
    struct Image {
        repository: String,
    }
    let path = root.join("deploy/helm/muster/values.yaml");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let values: Values = serde_saphyr::from_str(&text)
        .with_context(|| format!("image.repository in {}", path.display()))?;
    Ok(values.image.repository)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn images_that_lie_in_the_repository_are_no_difference_from_its_commit() {
        let repository = tempfile::tempdir().unwrap();
        let git = |arguments: &[&str]| {
            let output = Command::new("git")
                .args(arguments)
                .current_dir(repository.path())
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        git(&["init", "--quiet"]);
        let ours = repository.path().join("images/here");
        create_output(&ours).unwrap();
        fs::write(ours.join("image.tar"), "image").unwrap();
        assert_eq!(git(&["status", "--porcelain"]), "");

        // What somebody has written there is looked at as before.
        let others = repository.path().join("others");
        fs::create_dir(&others).unwrap();
        fs::write(others.join("source.rs"), "source").unwrap();
        create_output(&others).unwrap();
        assert_eq!(git(&["status", "--porcelain"]), "?? others/\n");
    }

    #[test]
    fn images_have_the_names_that_the_chart_pulls() {
        let prefix = chart_repository(&root()).unwrap();
        let (_, last) = prefix.rsplit_once('/').unwrap();
        let name = PROGRAMS[0].repository(&prefix);
        assert!(name.ends_with(&format!("/{last}-controller")), "{name}");
    }

    #[test]
    fn an_image_has_each_platform_once_in_whatever_order_they_were_named() {
        let (one, other) = (Platform::Amd64, Platform::Arm64);
        for named in [vec![one, other], vec![other, one, other]] {
            assert_eq!(ordered(named), [one, other]);
        }
    }

    #[test]
    fn the_chart_pulls_the_version_that_the_programs_have() {
        let chart = fs::read_to_string(root().join("deploy/helm/muster/Chart.yaml")).unwrap();
        let version = format!("appVersion: \"{}\"", env!("CARGO_PKG_VERSION"));
        assert!(chart.contains(&version), "{chart}");
    }
}
