//! The container image: a layout of the Open Container Initiative with one image an architecture.
//!
//! `index.json` has one entry, the image index, so that a tool that copies the image by its tag copies all architectures.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use oci_spec::image::{
    Arch, ConfigBuilder, Descriptor, DescriptorBuilder, Digest, HistoryBuilder,
    ImageConfigurationBuilder, ImageIndexBuilder, ImageManifestBuilder, MediaType,
    OciLayoutBuilder, Os, PlatformBuilder, RootFsBuilder, SCHEMA_VERSION,
};
use serde::Serialize;

use super::archive::{Tree, gzip};
use super::source::Source;
use super::sums;
use super::target::Target;

/// The program of an architecture.
pub struct Image<'a> {
    pub target: &'a Target,
    pub program: Vec<u8>,
}

const ENTRYPOINT: &str = "/usr/bin/weir";
const CONFIG: &str = "/etc/weir/limits.toml";
const LICENSES: &str = "MIT OR Apache-2.0";

/// The name of its file in a release.
pub fn image_name(version: &str) -> String {
    format!("weir-{version}-oci.tar")
}

/// Writes the layout as a tar archive, which `podman load` and `skopeo` read as `oci-archive`.
pub fn layout(images: &[Image<'_>], version: &str, source: &Source) -> Result<Vec<u8>> {
    let mut blobs = Blobs::default();
    let mut manifests = Vec::new();
    for image in images {
        let manifest = manifest(&mut blobs, image, version, source)
            .with_context(|| format!("describing the image of {}", image.target.triple))?;
        manifests.push(manifest);
    }
    let index = ImageIndexBuilder::default()
        .schema_version(SCHEMA_VERSION)
        .media_type(MediaType::ImageIndex)
        .manifests(manifests)
        .build()?;
    let mut index = blobs.document(MediaType::ImageIndex, &index)?;
    let tag = HashMap::from([(
        "org.opencontainers.image.ref.name".to_owned(),
        // Podman names the loaded image by it.
        format!("weir:{version}"),
    )]);
    index.set_annotations(Some(tag));
    let entry = ImageIndexBuilder::default()
        .schema_version(SCHEMA_VERSION)
        .media_type(MediaType::ImageIndex)
        .manifests([index])
        .build()?;
    let mark = OciLayoutBuilder::default()
        .image_layout_version("1.0.0")
        .build()?;
    let mut tree = blobs.0;
    tree.file("index.json", 0o644, json(&entry)?);
    tree.file("oci-layout", 0o644, json(&mark)?);
    tree.tar(source.time)
}

/// Adds an architecture's layer, configuration and manifest.
fn manifest(
    blobs: &mut Blobs,
    image: &Image<'_>,
    version: &str,
    source: &Source,
) -> Result<Descriptor> {
    let files = files(&image.program).tar(source.time)?;
    let architecture = Arch::from(image.target.go);
    let labels = HashMap::from(
        [
            ("title", "weir"),
            ("version", version),
            ("revision", &source.commit),
            ("licenses", LICENSES),
        ]
        .map(|(key, value)| {
            let key = format!("org.opencontainers.image.{key}");
            (key, value.to_owned())
        }),
    );
    let created = source.date()?;
    let history = HistoryBuilder::default()
        .created(created.as_str())
        .created_by("cargo xtask dist")
        .build()?;
    let execution = ConfigBuilder::default()
        .entrypoint([ENTRYPOINT.to_owned()])
        .cmd(["--config", CONFIG].map(str::to_owned))
        .labels(labels)
        .build()?;
    let configuration = ImageConfigurationBuilder::default()
        .created(created)
        .architecture(architecture.clone())
        .os(Os::Linux)
        .config(execution)
        .rootfs(
            RootFsBuilder::default()
                .typ("layers")
                .diff_ids([format!("sha256:{}", sums::of(&files))])
                .build()?,
        )
        .history([history])
        .build()?;
    let layer = blobs.add(MediaType::ImageLayerGzip, gzip(&files)?)?;
    let configuration = blobs.document(MediaType::ImageConfig, &configuration)?;
    let manifest = ImageManifestBuilder::default()
        .schema_version(SCHEMA_VERSION)
        .media_type(MediaType::ImageManifest)
        .config(configuration)
        .layers([layer])
        .build()?;
    let mut described = blobs.document(MediaType::ImageManifest, &manifest)?;
    let platform = PlatformBuilder::default()
        .architecture(architecture)
        .os(Os::Linux)
        .build()?;
    described.set_platform(Some(platform));
    Ok(described)
}

/// The files of the one layer. The folders are those that the agent writes to, and that are mounted over it.
fn files(program: &[u8]) -> Tree {
    let mut tree = Tree::default();
    tree.file(&ENTRYPOINT[1..], 0o755, program.to_vec());
    tree.link("usr/bin/agent", "weir");
    for folder in ["etc/weir", "run", "sys", "proc", "tmp", "var/lib"] {
        tree.folder(folder);
    }
    tree
}

/// Files that are named by their hash.
#[derive(Default)]
struct Blobs(Tree);

impl Blobs {
    fn add(&mut self, media_type: MediaType, bytes: Vec<u8>) -> Result<Descriptor> {
        let hash = sums::of(&bytes);
        let digest: Digest = format!("sha256:{hash}").parse()?;
        let descriptor = DescriptorBuilder::default()
            .media_type(media_type)
            .digest(digest)
            .size(u64::try_from(bytes.len())?)
            .build()?;
        self.0.file(&format!("blobs/sha256/{hash}"), 0o644, bytes);
        Ok(descriptor)
    }

    fn document(&mut self, media_type: MediaType, document: &impl Serialize) -> Result<Descriptor> {
        self.add(media_type, json(document)?)
    }
}

/// Writes a document with its keys sorted: maps of labels have no order of their own.
fn json(document: &impl Serialize) -> Result<Vec<u8>> {
    let sorted = serde_json::to_value(document).context("writing a document of the image")?;
    serde_json::to_vec(&sorted).context("writing a document of the image")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read as _;

    use serde_json::Value;

    use super::super::target::TARGETS;
    use super::*;

    fn source() -> Source {
        Source {
            commit: "c0ffee".to_owned(),
            tag: None,
            tree: "7ee".to_owned(),
            time: 1_000_000_000,
            is_changed: false,
        }
    }

    fn made() -> Vec<u8> {
        let images: Vec<Image<'_>> = TARGETS
            .iter()
            .map(|target| Image {
                target,
                program: target.triple.as_bytes().to_vec(),
            })
            .collect();
        layout(&images, "1.2.3", &source()).unwrap()
    }

    fn contents(tar: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(tar);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            (entry.path().unwrap().display().to_string(), bytes)
        });
        entries.collect()
    }

    /// The document that a descriptor names, checked against its size and hash.
    fn blob<'f>(files: &'f BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'f [u8] {
        let digest = descriptor["digest"].as_str().unwrap();
        let (_, hash) = digest.split_once(':').unwrap();
        let bytes = &files[&format!("blobs/sha256/{hash}")];
        assert_eq!(sums::of(bytes), hash);
        assert_eq!(descriptor["size"].as_u64(), u64::try_from(bytes.len()).ok());
        bytes
    }

    fn document(files: &BTreeMap<String, Vec<u8>>, descriptor: &Value) -> Value {
        serde_json::from_slice(blob(files, descriptor)).unwrap()
    }

    #[test]
    fn the_index_leads_to_a_program_an_architecture() {
        let files = contents(&made());
        let entry: Value = serde_json::from_slice(&files["index.json"]).unwrap();
        let annotations = &entry["manifests"][0]["annotations"];
        assert_eq!(
            annotations["org.opencontainers.image.ref.name"],
            "weir:1.2.3"
        );
        let index = document(&files, &entry["manifests"][0]);
        let manifests = index["manifests"].as_array().unwrap();
        assert_eq!(manifests.len(), TARGETS.len());
        for (described, target) in manifests.iter().zip(&TARGETS) {
            assert_eq!(described["platform"]["architecture"], target.go);
            let manifest = document(&files, described);
            let configuration = document(&files, &manifest["config"]);
            assert_eq!(configuration["architecture"], target.go);
            assert_eq!(configuration["created"], "2001-09-09T01:46:40Z");
            assert_eq!(configuration["config"]["Entrypoint"][0], ENTRYPOINT);
            let layer = blob(&files, &manifest["layers"][0]);
            let mut tar = Vec::new();
            flate2::read::GzDecoder::new(layer)
                .read_to_end(&mut tar)
                .unwrap();
            let unpacked = format!("sha256:{}", sums::of(&tar));
            assert_eq!(configuration["rootfs"]["diff_ids"][0], unpacked);
            assert_eq!(contents(&tar)["usr/bin/weir"], target.triple.as_bytes());
        }
    }

    #[test]
    fn two_layouts_of_one_release_are_identical() {
        assert_eq!(made(), made());
    }
}
