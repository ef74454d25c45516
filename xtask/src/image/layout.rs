//! Writes an image as an OCI layout: a directory of blobs named by their digests, and the same as one archive.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, Result};
use oci_spec::image::{
    ANNOTATION_REF_NAME, ConfigBuilder, Descriptor, Digest, HistoryBuilder,
    ImageConfigurationBuilder, ImageIndexBuilder, ImageManifestBuilder, MediaType, OciLayout,
    OciLayoutBuilder, Os, PlatformBuilder, RootFsBuilder,
};
use serde::Serialize;

use super::{digest::sha256, layer::Layer, platform::Platform};

/// The whole name, for containerd: it gives an image that it imports this name.
const CONTAINERD_NAME: &str = "io.containerd.image.name";

/// What the manifests and configurations say of an image, on all platforms alike.
#[derive(Debug)]
pub(crate) struct About {
    /// `REPOSITORY:TAG`.
    pub(crate) reference: String,
    /// What containers run.
    pub(crate) entrypoint: String,
    /// `UID:GID`.
    pub(crate) user: String,
    /// When it was made, as RFC 3339.
    pub(crate) created: String,
    /// Labels of the configuration, annotations of the manifest.
    pub(crate) labels: BTreeMap<String, String>,
}

/// An image of one platform.
#[derive(Debug)]
pub(crate) struct PlatformImage {
    pub(crate) platform: Platform,
    /// From the lowest to the highest, each with what it brings.
    pub(crate) layers: Vec<(Layer, String)>,
}

/// What was written.
#[derive(Debug)]
pub(crate) struct Written {
    /// Digest of the index over all platforms: what `image@DIGEST` names.
    pub(crate) index: String,
    /// Digest and size to transfer, for each platform.
    pub(crate) manifests: Vec<Manifest>,
}

/// One platform's manifest.
#[derive(Debug)]
pub(crate) struct Manifest {
    pub(crate) platform: Platform,
    pub(crate) digest: String,
    /// Manifest, configuration and compressed layers.
    pub(crate) transfer_bytes: u64,
}

/// Writes `directory` anew, and the archive beside it: `DIRECTORY.tar`.
pub(crate) fn write(directory: &Path, about: &About, images: &[PlatformImage]) -> Result<Written> {
    if directory.exists() {
        fs::remove_dir_all(directory)
            .with_context(|| format!("removing {}", directory.display()))?;
    }
    let blobs = Blobs::create(directory)?;
    let mut manifests = Vec::new();
    let mut descriptors = Vec::new();
    for image in images {
        let (descriptor, transfer_bytes) = write_platform(&blobs, about, image)?;
        manifests.push(Manifest {
            platform: image.platform,
            digest: descriptor.digest().to_string(),
            transfer_bytes,
        });
        descriptors.push(descriptor);
    }
    let index = ImageIndexBuilder::default()
        .schema_version(2_u32)
        .media_type(MediaType::ImageIndex)
        .manifests(descriptors)
        .annotations(annotations(about))
        .build()?;
    let mut index = blobs.write_json(MediaType::ImageIndex, &index)?;
    let digest = index.digest().to_string();
    let tag = about.reference.rsplit_once(':').map_or("", |(_, tag)| tag);
    index.set_annotations(Some(HashMap::from([
        (CONTAINERD_NAME.to_owned(), about.reference.clone()),
        (ANNOTATION_REF_NAME.to_owned(), tag.to_owned()),
    ])));
    let entry = ImageIndexBuilder::default()
        .schema_version(2_u32)
        .media_type(MediaType::ImageIndex)
        .manifests([index])
        .build()?;
    fs::write(directory.join("index.json"), canonical(&entry)?)?;
    let marker: OciLayout = OciLayoutBuilder::default()
        .image_layout_version("1.0.0")
        .build()?;
    fs::write(directory.join("oci-layout"), canonical(&marker)?)?;
    archive(directory)?;
    Ok(Written {
        index: digest,
        manifests,
    })
}

fn write_platform(
    blobs: &Blobs,
    about: &About,
    image: &PlatformImage,
) -> Result<(Descriptor, u64)> {
    let mut layers = Vec::new();
    let mut history = Vec::new();
    for (layer, brings) in &image.layers {
        layers.push(blobs.write(MediaType::ImageLayerGzip, &layer.blob)?);
        history.push(
            HistoryBuilder::default()
                .created(about.created.clone())
                .created_by(brings.clone())
                .build()?,
        );
    }
    let diff_ids = image.layers.iter().map(|(layer, _)| layer.diff_id.clone());
    let root = RootFsBuilder::default()
        .typ("layers")
        .diff_ids(diff_ids.collect::<Vec<_>>())
        .build()?;
    let config = ConfigBuilder::default()
        .user(about.user.clone())
        .entrypoint([about.entrypoint.clone()])
        .working_dir("/")
        .labels(annotations(about))
        .build()?;
    let configuration = ImageConfigurationBuilder::default()
        .created(about.created.clone())
        .architecture(image.platform.architecture())
        .os(Os::Linux)
        .config(config)
        .rootfs(root)
        .history(history)
        .build()?;
    let configuration = blobs.write_json(MediaType::ImageConfig, &configuration)?;
    let mut bytes = configuration.size() + layers.iter().map(Descriptor::size).sum::<u64>();
    let manifest = ImageManifestBuilder::default()
        .schema_version(2_u32)
        .media_type(MediaType::ImageManifest)
        .config(configuration)
        .layers(layers)
        .annotations(annotations(about))
        .build()?;
    let mut manifest = blobs.write_json(MediaType::ImageManifest, &manifest)?;
    bytes += manifest.size();
    let platform = PlatformBuilder::default()
        .architecture(image.platform.architecture())
        .os(Os::Linux)
        .build()?;
    manifest.set_platform(Some(platform));
    Ok((manifest, bytes))
}

fn annotations(about: &About) -> HashMap<String, String> {
    about.labels.clone().into_iter().collect()
}

/// The directory of blobs of a layout.
struct Blobs(PathBuf);

impl Blobs {
    fn create(layout: &Path) -> Result<Self> {
        let directory = layout.join("blobs/sha256");
        fs::create_dir_all(&directory)
            .with_context(|| format!("creating {}", directory.display()))?;
        Ok(Self(directory))
    }

    fn write(&self, kind: MediaType, bytes: &[u8]) -> Result<Descriptor> {
        let digest = Digest::from_str(&sha256(bytes))?;
        fs::write(self.0.join(digest.digest()), bytes)?;
        Ok(Descriptor::new(kind, bytes.len() as u64, digest))
    }

    fn write_json(&self, kind: MediaType, value: &impl Serialize) -> Result<Descriptor> {
        self.write(kind, &canonical(value)?)
    }
}

/// JSON with sorted keys: the types of `oci-spec` hold labels in maps without an order.
fn canonical(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut value = serde_json::to_value(value)?;
    value.sort_all_objects();
    Ok(serde_json::to_vec(&value)?)
}

/// Packs the layout into one file, as `ctr images import` takes it.
fn archive(directory: &Path) -> Result<()> {
    let mut name = directory.as_os_str().to_owned();
    name.push(".tar");
    let path = PathBuf::from(name);
    let mut blobs = Vec::new();
    for blob in fs::read_dir(directory.join("blobs/sha256"))? {
        let name = blob?.file_name();
        blobs.push(format!("blobs/sha256/{}", name.to_string_lossy()));
    }
    blobs.sort();
    let files = ["oci-layout".to_owned(), "index.json".to_owned()];
    let file = File::create(&path).with_context(|| format!("writing {}", path.display()))?;
    let mut builder = tar::Builder::new(file);
    // No time, no owner: only what the files hold.
    builder.mode(tar::HeaderMode::Deterministic);
    for name in files.into_iter().chain(blobs) {
        builder.append_path_with_name(directory.join(&name), &name)?;
    }
    builder.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests;
