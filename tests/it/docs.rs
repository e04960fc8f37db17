//! The texts beside the sources: their size, their links, and that each page is part of the guide.

use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// The files of a folder with this extension, by name.
fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|e| e == extension)).collect();
    found.sort();
    found
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// The link definitions of a text, as label and target.
fn definitions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: "));
    lines.filter(|(_, target)| !target.contains(' '))
}

/// Targets of the links of a text.
fn targets(text: &str) -> Vec<&str> {
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(t, _)| t);
    inline.chain(definitions(text).map(|(_, target)| target)).collect()
}

#[test]
fn readme_is_a_page() {
    let readme = read("README.md");
    assert!(readme.lines().count() <= 200, "{} lines", readme.lines().count());
    let long: Vec<_> = readme.lines().filter(|line| line.chars().count() > 100).collect();
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn links_lead_to_files() {
    let pages = ["", "docs", "examples"].into_iter().flat_map(|folder| files(folder, "md"));
    let mut links = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for target in targets(&text).into_iter().filter(|target| !target.contains("://")) {
            links += 1;
            let file = target.split('#').next().unwrap();
            assert!(page.with_file_name(file).exists(), "{}: {target}", page.display());
        }
    }
    assert!(links > 20, "{links}");
}

#[test]
fn pages_are_in_the_readme_and_in_the_guide() {
    let (readme, guide) = (read("README.md"), read("src/guide.rs"));
    for page in files("docs", "md") {
        assert!(readme.contains(&format!("](docs/{})", name(&page))), "{}", page.display());
        assert!(guide.contains(&format!("page!(\"{}\")", name(&page))), "{}", page.display());
        // A label that the guide does not define would lead to a file that the API documentation
        // does not have.
        let text = std::fs::read_to_string(&page).unwrap();
        assert!(!text.contains("]("), "{}: write [text][page]", page.display());
        for (label, file) in definitions(&text) {
            assert_eq!(file, format!("{label}.md"));
            assert!(guide.contains(&format!("\"[{label}]: crate::guide::")), "{label}");
        }
    }
}

#[test]
fn examples_are_all_listed() {
    let list = read("examples/README.md");
    for extension in ["rs", "py", "ts"] {
        for example in files("examples", extension) {
            assert!(list.contains(&format!("]({})", name(&example))), "{}", example.display());
        }
    }
}
