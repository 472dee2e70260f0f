//! The imports between files, and cycles among files and among folders.
//!
//! A path is resolved to the file that defines the item: through re-exports, which do not count as imports of the
//! re-exporting file, and through modules. Paths within macro calls and tests are not included.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, UseTree, Visibility};

/// The most re-exports of one item.
const MOST_RE_EXPORTS: usize = 16;

/// Files or folders that import each other, sorted, and the imports among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circle {
    /// Relative to the root of the workspace.
    pub members: Vec<PathBuf>,
    pub imports: Vec<Import>,
}

/// An import of one file by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    pub by: PathBuf,
    pub of: PathBuf,
    /// The path in the code.
    pub path: String,
}

/// The cycles of files of the crate with this root file, and then those of folders beside each other. Paths are relative to
/// `workspace`.
pub fn circles(workspace: &Path, root: &Path) -> Result<Vec<Circle>> {
    let mut modules = Modules::default();
    modules.read(workspace, root, &[])?;
    let imports = modules.imports();
    let files = cycles(
        imports
            .iter()
            .map(|import| (import.by.clone(), import.of.clone(), import)),
    );
    let folders = imports.iter().filter_map(|import| {
        let (by, of) = modules.folders(import)?;
        Some((by, of, import))
    });
    Ok([files, cycles(folders)].concat())
}

/// The cycles of a graph, each with its imports; one edge is shown for two members.
fn cycles<'a>(edges: impl Iterator<Item = (PathBuf, PathBuf, &'a Import)>) -> Vec<Circle> {
    let mut graph: BTreeMap<(PathBuf, PathBuf), &Import> = BTreeMap::new();
    for (by, of, import) in edges {
        graph.entry((by, of)).or_insert(import);
    }
    let members: BTreeSet<&Path> = graph
        .keys()
        .flat_map(|(by, of)| [by.as_path(), of])
        .collect();
    let reach: BTreeMap<&Path, BTreeSet<&Path>> = members
        .iter()
        .map(|member| (*member, reachable(member, &graph)))
        .collect();
    let is_in_one = |a: &Path, b: &Path| reach[a].contains(b) && reach[b].contains(a);
    let mut circles: BTreeSet<Vec<&Path>> = BTreeSet::new();
    for member in &members {
        let circle: Vec<&Path> = members
            .iter()
            .copied()
            .filter(|other| is_in_one(member, other))
            .collect();
        if !circle.is_empty() {
            circles.insert(circle);
        }
    }
    circles
        .into_iter()
        .map(|members| Circle {
            imports: graph
                .iter()
                .filter(|((by, of), _)| {
                    members.contains(&by.as_path()) && members.contains(&of.as_path())
                })
                .map(|(_, import)| (*import).clone())
                .collect(),
            members: members.into_iter().map(Path::to_owned).collect(),
        })
        .collect()
}

type ModulePath = Vec<String>;

#[derive(Default)]
struct Modules(BTreeMap<ModulePath, Module>);

struct Module {
    file: PathBuf,
    /// The items that `use` imports, by name; an empty name means a glob import. `None` for other crates' items.
    exports: Vec<(String, Option<ModulePath>)>,
    /// The paths in its code.
    paths: Vec<ModulePath>,
}

impl Modules {
    fn read(&mut self, workspace: &Path, file: &Path, path: &[String]) -> Result<()> {
        let text =
            fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let parsed =
            syn::parse_file(&text).with_context(|| format!("parsing {}", file.display()))?;
        let named = file.strip_prefix(workspace).unwrap_or(file).to_owned();
        let directory = directory_of(file);
        self.add(workspace, &named, &directory, path, &parsed.items)
    }

    fn add(
        &mut self,
        workspace: &Path,
        file: &Path,
        directory: &Path,
        path: &[String],
        items: &[Item],
    ) -> Result<()> {
        let mut module = Module {
            file: file.to_owned(),
            exports: Vec::new(),
            paths: Vec::new(),
        };
        let items: Vec<_> = items
            .iter()
            .filter(|item| !is_test(attributes(item)))
            .collect();
        let declared = |item: &&Item| {
            if let Item::Mod(child) = item {
                Some(child.ident.to_string())
            } else {
                None
            }
        };
        let children = items.iter().filter_map(declared).collect();
        let mut reader = Reader {
            at: path,
            imported: BTreeMap::new(),
            children,
            module: &mut module,
        };
        for item in &items {
            if let Item::Use(import) = item {
                reader.import(import);
            }
        }
        for item in &items {
            match item {
                Item::Use(_) | Item::Mod(_) => {}
                item => reader.visit_item(item),
            }
        }
        self.0.insert(path.to_vec(), module);
        for item in items {
            let Item::Mod(ItemMod { ident, content, .. }) = item else {
                continue;
            };
            let child: ModulePath = path.iter().cloned().chain([ident.to_string()]).collect();
            let directory = directory.join(ident.to_string());
            match content {
                Some((_, items)) => self.add(workspace, file, &directory, &child, items)?,
                None => {
                    let beside = directory.with_extension("rs");
                    let file = if beside.exists() {
                        beside
                    } else {
                        directory.join("mod.rs")
                    };
                    self.read(workspace, &file, &child)?;
                }
            }
        }
        Ok(())
    }

    /// The file that defines the item of an absolute path; `None` for modules and for other crates.
    fn defining(&self, path: &[String], depth: usize) -> Option<&Path> {
        let mut at: ModulePath = Vec::new();
        for (nth, name) in path.iter().enumerate() {
            let child: ModulePath = at.iter().cloned().chain([name.clone()]).collect();
            if self.0.contains_key(&child) {
                at = child;
                continue;
            }
            let module = self.0.get(&at)?;
            if depth < MOST_RE_EXPORTS {
                for (exported, target) in &module.exports {
                    let rest = if exported == name {
                        &path[nth + 1..]
                    } else {
                        &path[nth..]
                    };
                    if exported == name || exported.is_empty() {
                        let target = target
                            .as_ref()
                            .map(|target| target.iter().chain(rest).cloned().collect::<Vec<_>>());
                        let found = target.and_then(|target| self.defining(&target, depth + 1));
                        if exported == name || found.is_some() {
                            return found;
                        }
                    }
                }
            }
            return Some(&module.file);
        }
        None
    }

    /// The folders beside each other that hold the files of an import, if both files are in one.
    fn folders(&self, import: &Import) -> Option<(PathBuf, PathBuf)> {
        let pairs = import.by.iter().zip(&import.of);
        let common = pairs.take_while(|(by, of)| by == of).count();
        // The module of a folder may be a file beside it.
        let folder = |file: &Path| {
            let path: PathBuf = file.iter().take(common + 1).collect();
            let path = path.with_extension("");
            let mut files = self.0.values().map(|module| &module.file);
            files.any(|file| file.starts_with(&path)).then_some(path)
        };
        let (by, of) = (folder(&import.by)?, folder(&import.of)?);
        (by != of).then_some((by, of))
    }

    /// The imports of each file, one for each other file.
    fn imports(&self) -> Vec<Import> {
        let mut imports: BTreeMap<(&Path, &Path), String> = BTreeMap::new();
        for module in self.0.values() {
            for path in &module.paths {
                if let Some(file) = self.defining(path, 0).filter(|file| *file != module.file) {
                    imports
                        .entry((&module.file, file))
                        .or_insert_with(|| path.join("::"));
                }
            }
        }
        imports
            .into_iter()
            .map(|((by, of), path)| Import {
                by: by.to_owned(),
                of: of.to_owned(),
                path,
            })
            .collect()
    }
}

fn reachable<'a>(
    from: &Path,
    graph: &'a BTreeMap<(PathBuf, PathBuf), &Import>,
) -> BTreeSet<&'a Path> {
    let mut reached = BTreeSet::new();
    let mut waiting = vec![from.to_owned()];
    while let Some(member) = waiting.pop() {
        for (_, of) in graph.keys().filter(|(by, _)| *by == member) {
            if reached.insert(of.as_path()) {
                waiting.push(of.clone());
            }
        }
    }
    reached
}

/// The directory of a file's modules.
fn directory_of(file: &Path) -> PathBuf {
    let is_root = file
        .file_stem()
        .is_some_and(|stem| stem == "mod" || stem == "lib" || stem == "main");
    if is_root {
        file.parent().unwrap_or(Path::new("")).to_owned()
    } else {
        file.with_extension("")
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<syn::Ident>()
                .is_ok_and(|condition| condition == "test")
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Reads the paths of one module's code.
struct Reader<'a> {
    at: &'a [String],
    /// Imported names, and their absolute paths.
    imported: BTreeMap<String, ModulePath>,
    /// The modules that it declares.
    children: BTreeSet<String>,
    module: &'a mut Module,
}

impl Reader<'_> {
    fn import(&mut self, import: &ItemUse) {
        let mut leaves = Vec::new();
        leaves_of(&import.tree, &mut Vec::new(), &mut leaves);
        let is_export = !matches!(import.vis, Visibility::Inherited);
        for (path, name) in leaves {
            let path = self.absolute(&path);
            // Child modules may use names that this module imports.
            self.module.exports.push((name.clone(), path.clone()));
            let Some(path) = path else { continue };
            if !is_export {
                self.module.paths.push(path.clone());
            }
            self.imported.insert(name, path);
        }
    }

    /// The path from the crate's root; `None` for other crates and for items of this module.
    fn absolute(&self, path: &[String]) -> Option<ModulePath> {
        let (first, rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Vec::new(),
            "self" | "super" => self.at.to_vec(),
            name => {
                let child = || self.at.iter().cloned().chain([name.to_owned()]).collect();
                let known = self.imported.get(name).cloned();
                let mut found: ModulePath =
                    known.or_else(|| self.children.contains(name).then(child))?;
                found.extend(rest.iter().cloned());
                return Some(found);
            }
        };
        if first == "super" {
            at.pop();
        }
        for name in rest {
            match name.as_str() {
                "super" => drop(at.pop()),
                name => at.push(name.to_owned()),
            }
        }
        Some(at)
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string())
            .collect();
        let leads_on = names.len() > 1 && path.leading_colon.is_none();
        if leads_on && let Some(path) = self.absolute(&names) {
            self.module.paths.push(path);
        }
        visit::visit_path(self, path);
    }
}

/// The paths of a `use`, and the names that they import.
fn leaves_of(tree: &UseTree, before: &mut Vec<String>, leaves: &mut Vec<(Vec<String>, String)>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            leaves_of(&path.tree, before, leaves);
            before.pop();
        }
        UseTree::Group(group) => group
            .items
            .iter()
            .for_each(|tree| leaves_of(tree, before, leaves)),
        UseTree::Glob(_) => leaves.push((before.clone(), String::new())),
        UseTree::Name(_) | UseTree::Rename(_) => {
            let (ident, name) = match tree {
                UseTree::Rename(rename) => (&rename.ident, &rename.rename),
                UseTree::Name(name) => (&name.ident, &name.ident),
                _ => return,
            };
            let mut path = before.clone();
            if ident != "self" {
                path.push(ident.to_string());
            }
            let name = if name == "self" {
                before.last().cloned().unwrap_or_default()
            } else {
                name.to_string()
            };
            leaves.push((path, name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let found = circles(folder.path(), &folder.path().join("lib.rs")).unwrap();
        let names = |circle: Circle| {
            circle
                .members
                .iter()
                .map(|member| member.display().to_string())
                .collect()
        };
        found.into_iter().map(names).collect()
    }

    #[test]
    fn files_that_import_each_other_are_a_circle() {
        let circle = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "pub struct B; fn f() { crate::c::g(); }"),
            ("c.rs", "pub fn g() -> super::a::A { todo!() }"),
        ];
        assert_eq!(circles_of(&circle), [["a.rs", "b.rs", "c.rs"]]);
        let mut chain = circle;
        chain[3].1 = "pub fn g() {}";
        assert!(circles_of(&chain).is_empty());
    }

    #[test]
    fn a_module_that_declares_and_re_exports_imports_nothing() {
        let files = [
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod b; mod c; pub use b::B; pub use c::*;"),
            ("a/b.rs", "use super::C; pub struct B(C);"),
            ("a/c.rs", "pub struct C;"),
        ];
        assert!(circles_of(&files).is_empty());
        let mut defines = files;
        defines[1].1 = "mod b; mod c; use b::B; pub struct C(B);";
        assert_eq!(circles_of(&defines), [["a/b.rs", "a/mod.rs"]]);
    }

    #[test]
    fn names_that_are_imported_lead_to_where_they_are_defined_and_tests_are_left_out() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b; fn f() { b::g(); } pub fn h() {}"),
            (
                "b.rs",
                "pub fn g() {} #[cfg(test)] mod tests { use crate::a::h; }",
            ),
        ];
        assert!(circles_of(&files).is_empty());
        let mut both = files;
        both[2].1 = "pub fn g() { super::a::h(); }";
        assert_eq!(circles_of(&both), [["a.rs", "b.rs"]]);
    }

    #[test]
    fn folders_whose_files_import_each_others_are_a_circle() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a/mod.rs", "mod one; mod two;"),
            ("a/one.rs", "use crate::b::one::f;"),
            ("a/two.rs", "pub fn g() {}"),
            ("b.rs", "pub mod one; mod two;"),
            ("b/one.rs", "pub fn f() {}"),
            ("b/two.rs", "use crate::a::two::g; use crate::c::h;"),
            ("c.rs", "pub fn h() { crate::b::one::f(); }"),
        ];
        assert_eq!(circles_of(&files), [["a", "b"]]);
        let mut one_way = files;
        one_way[6].1 = "use crate::c::h;";
        assert!(circles_of(&one_way).is_empty());
    }
}
