// SPDX-License-Identifier: MIT OR Apache-2.0

//! Import graph of a crate: which source files name items of which other files.
//!
//! The compiler's tokens are read, so a path in a comment or a string is no import. Neither is a
//! path of an item that is compiled for unit tests only.

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use std::collections::BTreeMap;

/// A source file of a crate.
pub(super) struct File {
    /// Path in the checkout.
    pub(super) path: String,
    /// Module path below the crate's root; empty for a root file.
    pub(super) module: Vec<String>,
    pub(super) lines: usize,
    /// Values of the file's `#[path]` attributes, each with its line.
    pub(super) path_attributes: Vec<(usize, String)>,
}

/// An import of one file by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Import {
    /// Number of the importing file.
    pub(super) from: usize,
    /// Number of the imported file.
    pub(super) to: usize,
    pub(super) line: usize,
    /// The path that the importing file names, below the crate's root.
    pub(super) item: String,
}

/// The files of a crate and their imports. Root files neither import nor are imported.
pub(super) struct Graph {
    pub(super) files: Vec<File>,
    pub(super) imports: Vec<Import>,
}

impl Graph {
    /// Reads the crate whose sources are in `folder`, from pairs of path and text.
    ///
    /// # Errors
    ///
    /// The path of a file that is not Rust.
    pub(super) fn read(folder: &str, sources: &[(String, String)]) -> Result<Self, String> {
        let mut files = Vec::new();
        let mut paths = Vec::new();
        for (path, text) in sources {
            let module = module_of(folder, path);
            let tokens: TokenStream = text.parse().map_err(|e| format!("{path}: {e}"))?;
            let mut walk = Walk {
                module: module.clone(),
                children: Vec::new(),
                paths: Vec::new(),
                path_attributes: Vec::new(),
            };
            walk.body(tokens.into_iter().collect());
            paths.push(walk.paths);
            files.push(File {
                path: path.clone(),
                module,
                lines: text.lines().count(),
                path_attributes: walk.path_attributes,
            });
        }
        let by_module: BTreeMap<&[String], usize> = files
            .iter()
            .enumerate()
            .filter(|(_, file)| !file.module.is_empty())
            .map(|(number, file)| (file.module.as_slice(), number))
            .collect();
        let mut imports = Vec::new();
        for (from, paths) in paths.iter().enumerate() {
            if files[from].module.is_empty() {
                continue;
            }
            for (line, path) in paths {
                let file = (1..=path.len())
                    .rev()
                    .find_map(|len| by_module.get(&path[..len]).copied());
                if let Some(to) = file.filter(|to| *to != from) {
                    imports.push(Import {
                        from,
                        to,
                        line: *line,
                        item: path.join("::"),
                    });
                }
            }
        }
        Ok(Self { files, imports })
    }

    /// Sets of at least two files that import each other, directly or through others. The largest
    /// set comes first.
    pub(super) fn circles(&self) -> Vec<Vec<usize>> {
        let count = self.files.len();
        let mut reaches = vec![vec![false; count]; count];
        for import in &self.imports {
            reaches[import.from][import.to] = true;
        }
        for via in 0..count {
            let onward = reaches[via].clone();
            for row in reaches.iter_mut().filter(|row| row[via]) {
                for (reached, more) in row.iter_mut().zip(&onward) {
                    *reached |= more;
                }
            }
        }
        let mut circles: Vec<Vec<usize>> = Vec::new();
        for (file, row) in reaches.iter().enumerate() {
            let is_known = circles.iter().any(|circle| circle.contains(&file));
            if row[file] && !is_known {
                let mutual = |other: &usize| row[*other] && reaches[*other][file];
                circles.push((0..count).filter(mutual).collect());
            }
        }
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }
}

/// The module path of a file, by its place below `folder`; empty for a crate's root file.
fn module_of(folder: &str, path: &str) -> Vec<String> {
    let below = path.strip_prefix(folder).unwrap_or(path);
    let below = below.strip_prefix('/').unwrap_or(below);
    let below = below.strip_prefix("src/").unwrap_or(below);
    let mut module: Vec<String> = below
        .trim_end_matches(".rs")
        .split('/')
        .map(str::to_owned)
        .collect();
    let is_root = |name: &str| {
        ["lib", "main", "tree"].contains(&name)
            || name.ends_with("_main")
            || name.ends_with("_core")
    };
    if module.len() > 1 && module.last().is_some_and(|name| name == "mod")
        || module.len() == 1 && is_root(&module[0])
    {
        module.pop();
    }
    module
}

/// Reads a file's tokens.
struct Walk {
    /// The module of the tokens that are read: the file's, or one that stands inside.
    module: Vec<String>,
    /// Names of the modules that it declares in files of their own.
    children: Vec<String>,
    /// Paths below the crate's root, each with its line.
    paths: Vec<(usize, Vec<String>)>,
    path_attributes: Vec<(usize, String)>,
}

impl Walk {
    /// Reads a module's items.
    fn body(&mut self, tokens: Vec<TokenTree>) {
        let outer = std::mem::replace(&mut self.children, children(&tokens));
        self.tokens(&tokens);
        self.children = outer;
    }

    fn tokens(&mut self, tokens: &[TokenTree]) {
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at = match token {
                TokenTree::Punct(mark) if mark.as_char() == '#' => self.attribute(tokens, at),
                TokenTree::Ident(word) if *word == "pub" => after_visibility(tokens, at),
                TokenTree::Ident(word) if *word == "mod" => self.inner_module(tokens, at),
                TokenTree::Ident(word) => {
                    let word = word.to_string();
                    match self.start_of(&word) {
                        Some(start) if begins_path(tokens, at) => {
                            let line = token.span().start().line;
                            self.path(tokens, at + 1, start, line)
                        }
                        _ => at + 1,
                    }
                }
                TokenTree::Group(group) => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    self.tokens(&inner);
                    at + 1
                }
                _ => at + 1,
            };
        }
    }

    /// The module that the first word of a path names.
    fn start_of(&self, word: &str) -> Option<Vec<String>> {
        match word {
            "crate" => Some(Vec::new()),
            "self" => Some(self.module.clone()),
            "super" => Some(self.module[..self.module.len().saturating_sub(1)].to_vec()),
            child if self.children.iter().any(|name| name == child) => {
                let mut start = self.module.clone();
                start.push(child.to_owned());
                Some(start)
            }
            _ => None,
        }
    }

    /// Reads an attribute. Returns the place after the attribute, and after its item if that is
    /// compiled for unit tests only.
    fn attribute(&mut self, tokens: &[TokenTree], at: usize) -> usize {
        let is_inner =
            matches!(tokens.get(at + 1), Some(TokenTree::Punct(mark)) if mark.as_char() == '!');
        let body = at + 1 + usize::from(is_inner);
        let Some(TokenTree::Group(group)) = tokens.get(body) else {
            return at + 1;
        };
        let words: Vec<TokenTree> = group.stream().into_iter().collect();
        if let [TokenTree::Ident(name), TokenTree::Punct(_), TokenTree::Literal(value)] = &words[..]
        {
            if name == "path" {
                let value = value.to_string().trim_matches('"').to_owned();
                self.path_attributes.push((name.span().start().line, value));
            }
        }
        if is_inner || group.stream().to_string().replace(' ', "") != "cfg(test)" {
            return body + 1;
        }
        let is_end = |token: &TokenTree| match token {
            TokenTree::Punct(mark) => mark.as_char() == ';',
            TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
            _ => false,
        };
        let rest = tokens[body..].iter().position(is_end);
        rest.map_or(tokens.len(), |rest| body + rest + 1)
    }

    /// Reads `mod name { … }`. Returns the place after it, or after `mod`.
    fn inner_module(&mut self, tokens: &[TokenTree], at: usize) -> usize {
        let (Some(TokenTree::Ident(name)), Some(TokenTree::Group(body))) =
            (tokens.get(at + 1), tokens.get(at + 2))
        else {
            return at + 1;
        };
        self.module.push(name.to_string());
        self.body(body.stream().into_iter().collect());
        self.module.pop();
        at + 3
    }

    /// Reads the rest of a path, from the `::` at `at`. Returns the place after it.
    fn path(
        &mut self,
        tokens: &[TokenTree],
        mut at: usize,
        mut path: Vec<String>,
        line: usize,
    ) -> usize {
        while is_separator(tokens, at) {
            match tokens.get(at + 2) {
                Some(TokenTree::Ident(word)) => {
                    match word.to_string().as_str() {
                        "self" => {}
                        "super" => {
                            path.pop();
                        }
                        word => path.push(word.to_owned()),
                    }
                    at += 3;
                }
                Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                    self.group(group.stream(), &path);
                    return at + 3;
                }
                _ => break,
            }
        }
        self.paths.push((line, path));
        at
    }

    /// Reads the paths in the braces of a `use`.
    fn group(&mut self, tokens: TokenStream, prefix: &[String]) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let is_comma =
            |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ',');
        for part in tokens.split(is_comma) {
            let Some(first) = part.first() else { continue };
            let line = first.span().start().line;
            let mut path = prefix.to_vec();
            if let TokenTree::Ident(word) = first {
                match word.to_string().as_str() {
                    "self" => {}
                    word => path.push(word.to_owned()),
                }
            }
            self.path(part, 1, path, line);
        }
    }
}

/// Names of the modules that `tokens` declare in files of their own.
fn children(tokens: &[TokenTree]) -> Vec<String> {
    tokens
        .windows(3)
        .filter_map(|three| match three {
            [TokenTree::Ident(word), TokenTree::Ident(name), TokenTree::Punct(end)]
                if *word == "mod" && end.as_char() == ';' =>
            {
                Some(name.to_string())
            }
            _ => None,
        })
        .collect()
}

/// The place after `pub`, or after `pub(crate)` and the like.
fn after_visibility(tokens: &[TokenTree], at: usize) -> usize {
    let is_restricted = matches!(tokens.get(at + 1), Some(TokenTree::Group(group))
        if group.delimiter() == Delimiter::Parenthesis
            && matches!(group.stream().into_iter().next(), Some(TokenTree::Ident(word))
                if ["crate", "self", "super", "in"].iter().any(|start| word == *start)));
    at + 1 + usize::from(is_restricted)
}

/// Whether the word at `at` is followed by `::` and does not itself follow one.
fn begins_path(tokens: &[TokenTree], at: usize) -> bool {
    is_separator(tokens, at + 1) && !(at >= 2 && is_separator(tokens, at - 2))
}

/// Whether `::` stands at `at`.
fn is_separator(tokens: &[TokenTree], at: usize) -> bool {
    let colon = |at: usize| match tokens.get(at) {
        Some(TokenTree::Punct(mark)) if mark.as_char() == ':' => Some(mark.spacing()),
        _ => None,
    };
    colon(at) == Some(Spacing::Joint) && colon(at + 1).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The imports of a crate in `x/src`, as `from to line`.
    fn imports(files: &[(&str, &str)]) -> Vec<String> {
        let graph = graph(files);
        graph
            .imports
            .iter()
            .map(|import| {
                let name = |file: usize| graph.files[file].module.join("/");
                format!("{} {} {}", name(import.from), name(import.to), import.line)
            })
            .collect()
    }

    fn graph(files: &[(&str, &str)]) -> Graph {
        let files: Vec<(String, String)> = files
            .iter()
            .map(|(path, text)| (format!("x/src/{path}"), (*text).to_owned()))
            .collect();
        Graph::read("x", &files).unwrap()
    }

    const REST: [(&str, &str); 4] = [
        ("lib.rs", "pub mod a;\npub mod b;"),
        ("b.rs", "mod c;\nmod d;"),
        ("b/c.rs", ""),
        ("b/d.rs", ""),
    ];

    fn of_a(text: &str) -> Vec<String> {
        let mut files = vec![("a.rs", text)];
        files.extend(REST);
        imports(&files)
    }

    #[test]
    fn path_of_each_form_is_an_import() {
        assert_eq!(of_a("use crate::b;"), ["a b 1"]);
        assert_eq!(of_a("\nuse crate::b::Thing;"), ["a b 2"]);
        assert_eq!(
            of_a("use super::b::c::{self, Thing};"),
            ["a b/c 1", "a b/c 1"]
        );
        assert_eq!(
            of_a("use crate::{b::{c::X,\nd}, b};"),
            ["a b/c 1", "a b/d 2", "a b 2"]
        );
        assert_eq!(
            of_a("fn f() -> crate::b::d::T { g::<crate::b::T>() }"),
            ["a b/d 1", "a b 1"]
        );
        assert_eq!(of_a("mod inner { use super::super::b::c; }"), ["a b/c 1"]);
        assert_eq!(of_a("m! { a => $crate::b::x() }"), ["a b 1"]);
        assert_eq!(
            imports(&[
                ("b.rs", "mod c;\nfn f() { c::g() }"),
                ("b/c.rs", "use super::Y;")
            ]),
            ["b b/c 2", "b/c b 1"]
        );
    }

    #[test]
    fn text_that_is_no_import_is_ignored() {
        for text in [
            "// use crate::b;",
            "/// See [`crate::b::c`].\n/* crate::b */ fn f() {}",
            "const X: &str = \"crate::b\";",
            "pub(in crate::b) fn f() {}",
            "pub(super) fn f() {}",
            "use crate::Thing;",
            "use other::b::c;",
            "use kernel::{b, super_::c};",
            "mod inner { use super::Thing; }",
            "#[cfg(test)]\nmod tests { use crate::b; }",
            "#[cfg(test)]\nuse crate::b;",
        ] {
            assert_eq!(of_a(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn circle_is_found_through_other_files() {
        let graph = graph(&[
            ("a.rs", "use crate::b;"),
            ("b.rs", "use crate::c;"),
            ("c.rs", "use crate::a;"),
            ("d.rs", "use crate::a; use crate::e;"),
            ("e.rs", "use super::d;"),
            ("f.rs", "use crate::e;"),
        ]);
        assert_eq!(graph.circles(), [vec![0, 1, 2], vec![3, 4]]);
    }

    #[test]
    fn attribute_with_a_path_is_found() {
        let graph = graph(&[("a.rs", "\n#[path = \"x/y.rs\"]\nmod y;")]);
        assert_eq!(graph.files[0].path_attributes, [(2, "x/y.rs".to_owned())]);
    }
}
