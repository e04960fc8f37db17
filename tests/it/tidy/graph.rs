//! Which source uses which: `use` declarations and paths, followed through re-exports to the file
//! that has what is named.

use std::collections::{BTreeMap, BTreeSet};

use super::Source;

/// A module's path from its crate's root, such as `["store", "tables"]`.
type Module = Vec<String>;

/// Files of one crate, and what each uses of the others.
pub struct Graph {
    /// File to files.
    pub uses: BTreeMap<String, BTreeSet<String>>,
}

/// A name that a file imports, and the path it imports it by.
struct Import {
    name: String,
    path: Vec<String>,
    is_public: bool,
}

/// A file, taken apart.
struct Parsed {
    module: Module,
    imports: Vec<Import>,
    /// Code without comments, texts, tests and imports.
    rest: String,
}

impl Graph {
    /// Reads the files below `root`, such as `bin/outbox/`; the crate's root is one of `roots`.
    pub fn of(sources: &[Source], root: &str, roots: &[&str]) -> Self {
        let parsed: BTreeMap<&str, Parsed> = sources
            .iter()
            .filter_map(|source| {
                let name = source.name.strip_prefix(root)?;
                Some((source.name.as_str(), parse(&source.code, module_of(name, roots))))
            })
            .collect();
        let files: BTreeMap<&Module, &str> =
            parsed.iter().map(|(file, parsed)| (&parsed.module, *file)).collect();
        let crate_of = Crate { parsed: &parsed, files: &files };
        let uses = parsed.iter().map(|(file, parsed)| {
            let used = crate_of.used_by(parsed);
            ((*file).to_owned(), used.into_iter().filter(|used| used != file).collect())
        });
        Self { uses: uses.collect() }
    }

    /// Files that lead to each other, and the arrows among them.
    pub fn circles(&self) -> Vec<Vec<String>> {
        let reach: BTreeMap<&str, BTreeSet<&str>> =
            self.uses.keys().map(|file| (file.as_str(), self.reach(file))).collect();
        let mut seen = BTreeSet::new();
        let mut circles = Vec::new();
        for file in self.uses.keys().map(String::as_str) {
            let circle: BTreeSet<&str> =
                reach[file].iter().copied().filter(|other| reach[other].contains(file)).collect();
            if circle.is_empty() || !seen.insert(circle.clone()) {
                continue;
            }
            let arrows = circle.iter().flat_map(|from| {
                let to = self.uses[*from].iter().filter(|to| circle.contains(to.as_str()));
                to.map(move |to| format!("{from} -> {to}"))
            });
            circles.push(arrows.collect());
        }
        circles
    }

    fn reach(&self, file: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&str> = self.uses[file].iter().map(String::as_str).collect();
        while let Some(file) = next.pop() {
            if reached.insert(file) {
                next.extend(self.uses[file].iter().map(String::as_str));
            }
        }
        reached
    }
}

struct Crate<'a> {
    parsed: &'a BTreeMap<&'a str, Parsed>,
    files: &'a BTreeMap<&'a Module, &'a str>,
}

impl Crate<'_> {
    fn used_by(&self, parsed: &Parsed) -> BTreeSet<String> {
        let mut used = BTreeSet::new();
        for import in &parsed.imports {
            // A name that is only handed on is no use of it.
            if !import.is_public || has_word(&parsed.rest, &import.name) {
                used.extend(self.resolve(&parsed.module, &import.path, 0));
            }
        }
        for path in paths(&parsed.rest) {
            used.extend(self.resolve(&parsed.module, &path, 0));
        }
        used
    }

    /// The file that has what a path names, where it is one of this crate's.
    fn resolve(&self, from: &Module, path: &[String], depth: usize) -> Option<String> {
        let mut module = from.clone();
        let mut segments = path.iter().peekable();
        match path.first()?.as_str() {
            "crate" => {
                module.clear();
                segments.next();
            }
            "self" => drop(segments.next()),
            "super" => {
                while segments.next_if(|segment| *segment == "super").is_some() {
                    module.pop();
                }
            }
            first => {
                let child: Module = [module.clone(), vec![first.to_owned()]].concat();
                self.files.get(&child)?;
            }
        }
        while let Some(segment) = segments.peek() {
            let child: Module = [module.clone(), vec![(*segment).clone()]].concat();
            if !self.files.contains_key(&child) {
                break;
            }
            module = child;
            segments.next();
        }
        let file = *self.files.get(&module)?;
        let Some(name) = segments.next() else { return Some(file.to_owned()) };
        let handed_on = self.parsed[file].imports.iter().find(|import| import.name == *name);
        match handed_on {
            Some(import) if depth < 8 => {
                let rest: Vec<String> = segments.cloned().collect();
                self.resolve(&module, &[import.path.clone(), rest].concat(), depth + 1)
            }
            _ => Some(file.to_owned()),
        }
    }
}

fn module_of(name: &str, roots: &[&str]) -> Module {
    if roots.contains(&name) {
        return Module::new();
    }
    let name = name.strip_suffix("/mod.rs").or_else(|| name.strip_suffix(".rs")).unwrap_or(name);
    name.split('/').map(str::to_owned).collect()
}

fn parse(code: &str, module: Module) -> Parsed {
    let code = without_tests(&super::bare(code));
    let (mut imports, mut rest) = (Vec::new(), String::new());
    let mut left = code.as_str();
    while let Some(at) = find_use(left) {
        let (before, after) = left.split_at(at);
        let end = after.find(';').map_or(after.len(), |end| end + 1);
        let is_public = before.trim_end().ends_with("pub")
            || before.trim_end().ends_with(')')
                && before.rsplit('\n').next().unwrap().contains("pub(");
        rest.push_str(before);
        expand(&after["use".len()..end], &[], is_public, &mut imports);
        left = &after[end..];
    }
    rest.push_str(left);
    Parsed { module, imports, rest }
}

/// Where the next `use` declaration begins.
fn find_use(code: &str) -> Option<usize> {
    code.match_indices("use ").map(|(at, _)| at).find(|&at| {
        let line = code[..at].rsplit('\n').next().unwrap_or_default().trim();
        line.is_empty() || line == "pub" || line.starts_with("pub(") && line.ends_with(')')
    })
}

/// Takes a tree such as `crate::a::{B, c::D as E};` apart.
fn expand(tree: &str, prefix: &[String], is_public: bool, imports: &mut Vec<Import>) {
    let tree = tree.trim().trim_end_matches(';').trim();
    if let Some((path, branches)) = tree.split_once('{') {
        let segments = path.split("::").map(str::trim).filter(|s| !s.is_empty());
        let prefix: Vec<String> = [prefix.to_vec(), segments.map(str::to_owned).collect()].concat();
        let branches = branches.trim_end().strip_suffix('}').unwrap_or(branches);
        let (mut depth, mut begin) = (0, 0);
        for (at, c) in branches.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    expand(&branches[begin..at], &prefix, is_public, imports);
                    begin = at + 1;
                }
                _ => {}
            }
        }
        return expand(&branches[begin..], &prefix, is_public, imports);
    }
    if tree.is_empty() {
        return;
    }
    let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(p, a)| (p, Some(a.trim())));
    let segments = path.split("::").map(|segment| segment.trim().to_owned());
    let mut path: Vec<String> = [prefix.to_vec(), segments.collect()].concat();
    if path.last().is_some_and(|last| last == "self" || last == "*") && path.len() > 1 {
        path.pop();
    }
    let name = alias.map_or_else(|| path.last().cloned().unwrap_or_default(), str::to_owned);
    imports.push(Import { name, path, is_public });
}

/// Every path of two segments or more in the code.
fn paths(code: &str) -> Vec<Vec<String>> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    code.split(|c| !is_part(c))
        .filter(|word| word.contains("::"))
        .map(|word| word.split("::").filter(|s| !s.is_empty()).map(str::to_owned).collect())
        .filter(|path: &Vec<String>| path.len() > 1)
        .collect()
}

fn has_word(code: &str, word: &str) -> bool {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == word)
}

/// Leaves out what follows `#[cfg(test)]`, up to the end of the item.
fn without_tests(code: &str) -> String {
    let mut kept = String::new();
    let mut left = code;
    while let Some((before, after)) = left.split_once("#[cfg(test)]") {
        kept.push_str(before);
        let mut depth = 0;
        let end = after.char_indices().find_map(|(at, c)| {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            (depth == 0 && (c == ';' || c == '}')).then_some(at + 1)
        });
        left = &after[end.unwrap_or(after.len())..];
    }
    kept.push_str(left);
    kept
}
