//! Links between the project's pages lead somewhere: to a file, and to a heading where they name one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The links of a page that lead nowhere; `root` is the project's folder.
pub(crate) fn broken(root: &Path, page: &Path, text: &str) -> Vec<String> {
    let folder = page.parent().unwrap();
    links(text)
        .filter(|link| !is_elsewhere(link))
        .filter(|link| {
            let (path, heading) =
                link.split_once('#').map_or((*link, None), |(path, heading)| (path, Some(heading)));
            let target = if path.is_empty() { page.to_path_buf() } else { folder.join(path) };
            let is_there =
                target.exists() && target.canonicalize().unwrap().starts_with(root.canonicalize().unwrap());
            let has_heading = |heading: &str| {
                std::fs::read_to_string(&target).is_ok_and(|text| headings(&text).contains(heading))
            };
            !is_there || heading.is_some_and(|heading| !has_heading(heading))
        })
        .map(|link| format!("{}: {link}", page.display()))
        .collect()
}

/// The files that a page links to, of those that are there.
pub(crate) fn targets(page: &Path, text: &str) -> Vec<PathBuf> {
    let folder = page.parent().unwrap();
    links(text)
        .filter(|link| !is_elsewhere(link))
        .filter_map(|link| folder.join(link).canonicalize().ok())
        .collect()
}

/// All pages of the project.
pub(crate) fn pages(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if path.is_dir() {
                // Builds and data are no part of the project.
                let is_ours =
                    !name.starts_with('.') && !["target", "data", "dist", "node_modules"].contains(&&*name);
                folders.extend(is_ours.then_some(path));
            } else if path.extension().is_some_and(|kind| kind == "md") {
                found.push(path);
            }
        }
    }
    found
}

fn is_elsewhere(link: &str) -> bool {
    ["http:", "https:", "mailto:"].iter().any(|scheme| link.starts_with(scheme))
}

/// The targets of `[text](target)`, outside of code.
fn links(text: &str) -> impl Iterator<Item = &str> {
    prose(text).flat_map(|line| {
        line.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter(|link| !link.contains(' '))
    })
}

/// The lines outside of fenced and indented code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence && !line.starts_with("    ")
    })
}

/// The anchors of a page's headings, as forges and mdbook make them.
fn headings(text: &str) -> BTreeSet<String> {
    let titles = prose(text).filter(|line| line.starts_with('#'));
    titles
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
            kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
        })
        .collect()
}

/// A link to nowhere is found; code and other hosts are not looked at.
#[test]
fn broken_links_are_found() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = root.join("README.md");
    let text = "[a](docs/faq.md) [b](docs/no-such.md) [c](https://x.example/y) [d](docs/faq.md#why-did-i-get-a-504)\n\
                [e](docs/faq.md#no-such) [f](../outside.md)\n    [g](code.md)\n";
    let found = broken(root, &page, text);
    assert_eq!(found.len(), 3, "{found:?}");
}
