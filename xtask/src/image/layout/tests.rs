use std::{collections::BTreeSet, io::Read};

use flate2::read::GzDecoder;
use oci_spec::image::{ImageConfiguration, ImageIndex, ImageManifest};

use super::*;
use crate::image::layer::Files;

fn layer(path: &str, content: &str) -> Layer {
    let mut files = Files::default();
    files.add_executable(path, content);
    files.pack().unwrap()
}

fn about() -> About {
    About {
        reference: "example.com/muster-controller:0.1.0".to_owned(),
        entrypoint: "/muster-controller".to_owned(),
        user: "65532:65532".to_owned(),
        created: "2026-11-24T17:17:14Z".to_owned(),
        // Enough of them that a map without order would betray itself.
        labels: (0..20)
            .map(|number| (format!("label-{number}"), number.to_string()))
            .collect(),
    }
}

fn images() -> Vec<PlatformImage> {
    Platform::ALL
        .into_iter()
        .map(|platform| PlatformImage {
            platform,
            layers: vec![
                (layer("/lib/libc.so.6", "libc"), "libraries".to_owned()),
                (layer("/program", &platform.name()), "program".to_owned()),
            ],
        })
        .collect()
}

/// Writes an image of two platforms.
fn written(directory: &Path) -> Written {
    write(&directory.join("image"), &about(), &images()).unwrap()
}

/// A blob, after its size and its digest were compared with what its descriptor says.
fn blob(layout: &Path, descriptor: &Descriptor) -> Vec<u8> {
    let bytes = fs::read(
        layout
            .join("blobs/sha256")
            .join(descriptor.digest().digest()),
    )
    .unwrap();
    assert_eq!(bytes.len() as u64, descriptor.size());
    assert_eq!(sha256(&bytes), descriptor.digest().to_string());
    bytes
}

/// The one image of a layout, found as a container runtime finds it.
fn index(layout: &Path) -> (Descriptor, ImageIndex) {
    let entry = ImageIndex::from_file(layout.join("index.json")).unwrap();
    let [image] = entry.manifests().as_slice() else {
        panic!("one image: {entry:?}");
    };
    assert_eq!(image.media_type(), &MediaType::ImageIndex);
    let index = ImageIndex::from_reader(blob(layout, image).as_slice()).unwrap();
    (image.clone(), index)
}

#[test]
fn every_descriptor_leads_to_a_blob_of_its_size_and_digest() {
    let directory = tempfile::tempdir().unwrap();
    let written = written(directory.path());
    let layout = directory.path().join("image");
    let marker = OciLayout::from_file(layout.join("oci-layout")).unwrap();
    assert_eq!(marker.image_layout_version(), "1.0.0");

    let (image, index) = index(&layout);
    assert_eq!(image.digest().to_string(), written.index);
    let mut reached = BTreeSet::from([image.digest().digest().to_owned()]);
    assert_eq!(index.manifests().len(), 2);
    for (descriptor, told) in index.manifests().iter().zip(&written.manifests) {
        assert_eq!(descriptor.digest().to_string(), told.digest);
        let platform = descriptor.platform().as_ref().unwrap();
        assert_eq!(platform.architecture(), &told.platform.architecture());
        let bytes = blob(&layout, descriptor);
        let manifest = ImageManifest::from_reader(bytes.as_slice()).unwrap();
        let configuration = blob(&layout, manifest.config());
        let configuration = ImageConfiguration::from_reader(configuration.as_slice()).unwrap();
        assert_eq!(configuration.architecture(), platform.architecture());
        let mut transferred = descriptor.size() + manifest.config().size();
        let diff_ids = configuration.rootfs().diff_ids();
        assert_eq!(diff_ids.len(), manifest.layers().len());
        for (layer, diff_id) in manifest.layers().iter().zip(diff_ids) {
            let compressed = blob(&layout, layer);
            let mut plain = Vec::new();
            let mut gzip = GzDecoder::new(compressed.as_slice());
            gzip.read_to_end(&mut plain).unwrap();
            assert_eq!(&sha256(&plain), diff_id);
            transferred += layer.size();
            reached.insert(layer.digest().digest().to_owned());
        }
        assert_eq!(told.transfer_bytes, transferred);
        reached.insert(descriptor.digest().digest().to_owned());
        reached.insert(manifest.config().digest().digest().to_owned());
    }
    let kept: BTreeSet<String> = fs::read_dir(layout.join("blobs/sha256"))
        .unwrap()
        .map(|blob| blob.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(kept, reached, "blobs that nothing names");
}

#[test]
fn the_configuration_says_what_runs_as_whom() {
    let directory = tempfile::tempdir().unwrap();
    written(directory.path());
    let layout = directory.path().join("image");
    let (_, index) = index(&layout);
    let manifest = blob(&layout, &index.manifests()[0]);
    let manifest = ImageManifest::from_reader(manifest.as_slice()).unwrap();
    let bytes = blob(&layout, manifest.config());
    let configuration = ImageConfiguration::from_reader(bytes.as_slice()).unwrap();
    let config = configuration.config().clone().unwrap();
    assert_eq!(config.user().as_deref(), Some("65532:65532"));
    let entrypoint = vec!["/muster-controller".to_owned()];
    assert_eq!(config.entrypoint(), &Some(entrypoint));
    assert_eq!(config.cmd(), &None);
    assert_eq!(config.labels().as_ref().unwrap().len(), 20);
    assert_eq!(manifest.annotations().as_ref().unwrap().len(), 20);
    let created = configuration.created().as_deref();
    assert_eq!(created, Some("2026-11-24T17:17:14Z"));
}

#[test]
fn an_image_that_is_imported_has_its_full_name() {
    let directory = tempfile::tempdir().unwrap();
    written(directory.path());
    let (image, _) = index(&directory.path().join("image"));
    let names = image.annotations().clone().unwrap();
    assert_eq!(
        names[CONTAINERD_NAME],
        "example.com/muster-controller:0.1.0"
    );
    assert_eq!(names[ANNOTATION_REF_NAME], "0.1.0");
}

#[test]
fn twice_the_same_image_is_twice_the_same_bytes() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    assert_eq!(written(one.path()).index, written(other.path()).index);
    // Over what is there already, too.
    written(other.path());
    let archive = |directory: &Path| fs::read(directory.join("image.tar")).unwrap();
    assert!(archive(one.path()) == archive(other.path()));
}

#[test]
fn the_archive_holds_the_layout_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    written(directory.path());
    let layout = directory.path().join("image");
    let archive = File::open(directory.path().join("image.tar")).unwrap();
    let mut files = 0;
    for entry in tar::Archive::new(archive).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = layout.join(entry.path().unwrap());
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        assert!(content == fs::read(&path).unwrap(), "{}", path.display());
        files += 1;
    }
    let blobs = fs::read_dir(layout.join("blobs/sha256")).unwrap().count();
    assert_eq!(files, blobs + 2);
}

#[test]
fn a_layer_that_images_share_is_kept_once() {
    let directory = tempfile::tempdir().unwrap();
    written(directory.path());
    let blobs = fs::read_dir(directory.path().join("image/blobs/sha256")).unwrap();
    // Of two platforms: an index, two manifests, two configurations, two programs, and the libraries of both.
    assert_eq!(blobs.count(), 8);
}
