//! The modules of a guest, in loading order.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::tool::decompress;

/// The modules that the tests need unless they are built into the kernel.
pub const FOR_TESTS: [&str; 50] = [
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "veth",
    "tun",
    "dummy",
    "ifb",
    "8021q",
    "vxlan",
    "bonding",
    "bridge",
    "macvlan",
    "vrf",
    "team",
    "team_mode_roundrobin",
    "ipvlan",
    "macsec",
    "wireguard",
    "geneve",
    "ip_gre",
    "ip6_gre",
    "ipip",
    "sit",
    "ip6_tunnel",
    "ip_vti",
    "xfrm_interface",
    "xfrm_user",
    "esp4",
    "gcm",
    "ctr",
    "ghash_generic",
    "crypto_null",
    "authenc",
    "sch_ingress",
    "sch_fq",
    "sch_fq_codel",
    "sch_netem",
    "sch_htb",
    "sch_tbf",
    "cls_bpf",
    "cls_matchall",
    "cls_u32",
    "act_bpf",
    "act_mirred",
    "nf_tables",
    "nft_limit",
    "nft_compat",
    "xt_hashlimit",
    "bfq",
    "overlay",
];

/// The modules of a kernel.
pub struct Modules {
    folder: PathBuf,
    /// By name: the file, and the files that must be loaded before it, the first needed last.
    known: BTreeMap<String, (String, Vec<String>)>,
    /// By name: its soft dependencies.
    soft: BTreeMap<String, Vec<String>>,
    builtin: String,
}

/// A module to load.
pub struct Module {
    pub file_name: String,
    pub bytes: Vec<u8>,
}

impl Modules {
    /// The folder of the modules, named after the kernel.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Reads depmod's files in the folder of a kernel's modules.
    pub fn open(folder: PathBuf) -> Result<Self> {
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        };
        let known = read("modules.dep")?
            .lines()
            .filter_map(dependencies)
            .collect();
        let soft = read("modules.softdep")?
            .lines()
            .filter_map(soft_dependencies)
            .collect();
        let builtin = read("modules.builtin")?;
        Ok(Self {
            folder,
            known,
            soft,
            builtin,
        })
    }

    /// The wanted modules and their dependencies, in loading order; and the names of those this kernel lacks.
    pub fn wanted(&self, names: &[&'static str]) -> Result<(Vec<Module>, Vec<&'static str>)> {
        let mut order = Vec::new();
        let mut missing = Vec::new();
        for &name in names {
            if self.known.contains_key(name) {
                self.append(name, &mut order);
            } else if !self.builtin.lines().any(|path| module_name(path) == name) {
                missing.push(name);
            }
        }
        let modules = order
            .iter()
            .map(|file| self.read(file))
            .collect::<Result<_>>()?;
        Ok((modules, missing))
    }

    fn append<'m>(&'m self, name: &str, order: &mut Vec<&'m str>) {
        for needed in self.soft.get(name).into_iter().flatten() {
            self.append(needed, order);
        }
        let Some((file, needed)) = self.known.get(name) else {
            return;
        };
        for file in needed.iter().rev().chain([file]) {
            if order.contains(&file.as_str()) {
                continue;
            }
            for soft in self
                .soft
                .get(&module_name(file))
                .into_iter()
                .flatten()
                .filter(|soft| *soft != name)
            {
                self.append(soft, order);
            }
            if !order.contains(&file.as_str()) {
                order.push(file);
            }
        }
    }

    fn read(&self, file: &str) -> Result<Module> {
        let path = self.folder.join(file);
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let bytes = match path.extension().and_then(|extension| extension.to_str()) {
            Some(program @ ("xz" | "zst")) => {
                let program = if program == "xz" { "xz" } else { "zstd" };
                decompress(program, &bytes)
                    .with_context(|| format!("unpacking {}", path.display()))?
            }
            _ => bytes,
        };
        Ok(Module {
            file_name: format!("{}.ko", module_name(file)),
            bytes,
        })
    }
}

/// The name of a module, from its file's path.
fn module_name(path: &str) -> String {
    let file = Path::new(path)
        .file_name()
        .map_or_else(|| path.into(), |name| name.to_string_lossy());
    file.split('.').next().unwrap_or_default().replace('-', "_")
}

/// A line of modules.dep, as in `kernel/net/sched/cls_u32.ko.xz: kernel/net/other.ko.xz`.
fn dependencies(line: &str) -> Option<(String, (String, Vec<String>))> {
    let (file, needed) = line.split_once(':')?;
    let needed = needed.split_whitespace().map(str::to_owned).collect();
    Some((module_name(file), (file.to_owned(), needed)))
}

/// A line of modules.softdep, as in `softdep libcrc32c pre: crc32c post: other`.
fn soft_dependencies(line: &str) -> Option<(String, Vec<String>)> {
    let rest = line.strip_prefix("softdep ")?;
    let (name, rest) = rest.split_once(' ')?;
    let before = rest.split_once("pre:")?.1.split("post:").next()?;
    Some((
        name.replace('-', "_"),
        before
            .split_whitespace()
            .map(|name| name.replace('-', "_"))
            .collect(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_of_a_module_are_loaded_before_it_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let files = [
            "veth",
            "8021q",
            "mrp",
            "garp",
            "nf_tables",
            "libcrc32c",
            "crc32c-intel",
        ];
        for file in files {
            write(&format!("{file}.ko"), file);
        }
        write(
            "modules.dep",
            "veth.ko:\n8021q.ko: garp.ko mrp.ko\nmrp.ko:\ngarp.ko: mrp.ko\nnf_tables.ko: libcrc32c.ko\nlibcrc32c.ko:\n\
             crc32c-intel.ko:\n",
        );
        write(
            "modules.softdep",
            "# comment\nsoftdep libcrc32c pre: crc32c-intel\nsoftdep veth post: other\n",
        );
        let rest = FOR_TESTS
            .iter()
            .filter(|name| !["veth", "8021q", "nf_tables", "bfq"].contains(name));
        write(
            "modules.builtin",
            &rest
                .map(|name| format!("kernel/{name}.ko\n"))
                .collect::<String>(),
        );
        let (modules, missing) = Modules::open(folder.path().to_owned())
            .unwrap()
            .wanted(&FOR_TESTS)
            .unwrap();
        let order: Vec<&str> = modules
            .iter()
            .map(|module| module.file_name.as_str())
            .collect();
        let expected = [
            "veth.ko",
            "mrp.ko",
            "garp.ko",
            "8021q.ko",
            "crc32c_intel.ko",
            "libcrc32c.ko",
            "nf_tables.ko",
        ];
        assert_eq!(order, expected);
        assert_eq!(modules[4].bytes, b"crc32c-intel");
        assert_eq!(missing, ["bfq"]);
    }
}
