// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks of the order between source files: layers of the framework, and circles of imports.

use super::files::within;
use super::imports::{File, Graph, Import};
use super::Lint;
use anyhow::Result;
use std::collections::BTreeSet;

/// The checked crates: name and folder.
const CRATES: [(&str, &str); 6] = [
    (CORE, "kfabric"),
    ("kverbs", "kverbs-provider"),
    ("kshm", "kshm-provider"),
    ("kfblk", "kfblk"),
    ("pure", "pure/src"),
    ("libkfabric", "userspace/libkfabric/src"),
];
/// The crate with layers.
const CORE: &str = "kfabric";

/// The layers of [`CORE`], lowest first, each with its modules. A module may import modules of its
/// own layer and of lower ones.
const LAYERS: [(&str, &[&str]); 10] = [
    ("sys", &["sys"]),
    ("base", &["base"]),
    ("memory", &["memory"]),
    ("op", &["op"]),
    ("provider", &["provider"]),
    ("auth", &["auth"]),
    ("objects", &["objects", "waiter"]),
    ("key", &["key"]),
    ("ep", &["ep"]),
    (FRONTS, &["chardev", "capi"]),
];
/// The layer whose modules must not import each other.
const FRONTS: &str = "fronts";

/// Forward declarations: a module may name a type of a higher layer in the signatures of a trait, if
/// it neither makes nor uses a value. Importing module, type, and the reason. Such an import counts
/// neither against the layers nor for circles. An entry without an import fails, so the list can
/// only shrink.
const FORWARD: [(&str, &str, &str); 1] = [(
    "provider::traits::endpoint",
    "ep::OpToken",
    "a provider's operations take tokens, which hold the endpoint, and the endpoint holds the provider",
)];

/// Files of a circle that spans several folders.
const CIRCLE: usize = 3;

/// Targets of `#[path]`: the trees that several crates compile.
const SHARED: [&str; 2] = ["pure/src/tree.rs", "uapi/src/abi.rs"];

/// Imports follow the layers, circles of imports are small, and modules lie where their names say.
pub(super) fn layers(lint: &Lint<'_>) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    if lint.verbose {
        println!(
            "{}",
            row(["crate", "files", "lines", "median", "max", "circle"])
        );
    }
    for (name, folder) in CRATES {
        let is_source = |path: &&String| path.ends_with(".rs") && within(path, folder);
        let sources: Vec<(String, String)> = lint
            .files
            .iter()
            .filter(is_source)
            .map(|path| {
                let text = std::fs::read_to_string(lint.ctx.repo.join(path)).unwrap_or_default();
                (path.clone(), text)
            })
            .collect();
        match Graph::read(folder, &sources) {
            Ok(mut graph) => {
                if name == CORE {
                    faults.extend(cut(&mut graph, &FORWARD));
                }
                if lint.verbose {
                    println!("{}", figures(name, &graph));
                }
                faults.extend(complaints(name, &graph));
            }
            Err(fault) => faults.push(fault),
        }
    }
    Ok(faults)
}

/// A row of the table of figures.
fn row(cells: [&str; 6]) -> String {
    let [name, files, lines, median, max, circle] = cells;
    format!("{name:12} {files:>6} {lines:>7} {median:>7} {max:>5} {circle:>7}")
}

/// The figures of a crate: files, lines, median and maximum of a file's lines, and the number of
/// files in the largest circle of imports.
fn figures(name: &str, graph: &Graph) -> String {
    let mut lines: Vec<usize> = graph.files.iter().map(|file| file.lines).collect();
    lines.sort_unstable();
    let numbers = [
        lines.len(),
        lines.iter().sum(),
        lines.get(lines.len() / 2).copied().unwrap_or(0),
        lines.last().copied().unwrap_or(0),
        graph.circles().first().map_or(0, Vec::len),
    ]
    .map(|number| number.to_string());
    let [files, all, median, max, circle] = numbers.each_ref().map(String::as_str);
    row([name, files, all, median, max, circle])
}

/// The complaints about a crate.
fn complaints(name: &str, graph: &Graph) -> Vec<String> {
    let mut faults = places(graph);
    faults.extend(circles(name, graph));
    if name == CORE {
        faults.extend(upward(graph));
    }
    faults
}

/// Removes the forward declarations from a graph of [`CORE`]. Returns a fault for each entry of
/// `forward` that no import needs.
fn cut(graph: &mut Graph, forward: &[(&str, &str, &str)]) -> Vec<String> {
    let is_forward = |graph: &Graph, import: &Import, (module, item, _): &(&str, &str, &str)| {
        graph.files[import.from].module.join("::") == *module && import.item == *item
    };
    let unused = forward.iter().filter(|entry| {
        !graph
            .imports
            .iter()
            .any(|import| is_forward(graph, import, entry))
    });
    let faults = unused
        .map(|(module, item, _)| {
            format!(
                "{module} no longer imports {item}: delete the entry in xtask/src/lint/layers.rs"
            )
        })
        .collect();
    let kept = graph
        .imports
        .iter()
        .filter(|import| !forward.iter().any(|entry| is_forward(graph, import, entry)))
        .cloned()
        .collect();
    graph.imports = kept;
    faults
}

/// Number and name of the layer of a module, by the longest entry of [`LAYERS`] that matches.
fn layer(module: &[String]) -> Option<(usize, &'static str)> {
    (1..=module.len()).rev().find_map(|len| {
        let path = module[..len].join("::");
        LAYERS
            .iter()
            .position(|(_, modules)| modules.contains(&path.as_str()))
            .map(|number| (number, LAYERS[number].0))
    })
}

/// Imports of higher layers, imports between fronts, and modules without a layer.
fn upward(graph: &Graph) -> Vec<String> {
    let mut faults = Vec::new();
    for file in graph.files.iter().filter(|file| !file.module.is_empty()) {
        if layer(&file.module).is_none() {
            faults.push(format!(
                "{}: in no layer: name its module in LAYERS of xtask/src/lint/layers.rs",
                file.path
            ));
        }
    }
    for import in &graph.imports {
        let (from, to) = (&graph.files[import.from], &graph.files[import.to]);
        let (Some((low, below)), Some((high, above))) = (layer(&from.module), layer(&to.module))
        else {
            continue;
        };
        let fault = if low < high {
            format!(
                "layer {below} imports {} of the higher layer {above}",
                to.module.join("::")
            )
        } else if below == FRONTS && above == FRONTS && from.module[0] != to.module[0] {
            format!("front {} imports front {}", from.module[0], to.module[0])
        } else {
            continue;
        };
        faults.push(format!("{}:{}: {fault}", from.path, import.line));
    }
    faults.dedup();
    faults
}

/// Circles of more than [`CIRCLE`] files that span several folders or layers.
fn circles(name: &str, graph: &Graph) -> Vec<String> {
    let group = |file: &File| match layer(&file.module) {
        Some((_, layer)) if name == CORE => layer.to_owned(),
        _ => file.module[0].clone(),
    };
    let mut faults = Vec::new();
    for circle in graph.circles() {
        let files: Vec<&File> = circle.iter().map(|file| &graph.files[*file]).collect();
        let first = group(files[0]);
        if files.iter().all(|file| group(file) == first) {
            continue;
        }
        if files.len() <= CIRCLE {
            continue;
        }
        let mut fault = format!(
            "{name}: {} files import each other across folders, {CIRCLE} at most:",
            files.len()
        );
        let mut seen = BTreeSet::new();
        for import in &graph.imports {
            let (from, to) = (&graph.files[import.from], &graph.files[import.to]);
            let is_inside = circle.contains(&import.from) && circle.contains(&import.to);
            if is_inside && group(from) != group(to) && seen.insert((import.from, import.to)) {
                fault.push_str(&format!(
                    "\n{}:{}: imports {}",
                    from.path, import.line, to.path
                ));
            }
        }
        faults.push(fault);
    }
    faults
}

/// Modules whose files do not lie where their names say.
fn places(graph: &Graph) -> Vec<String> {
    let mut faults = Vec::new();
    for file in &graph.files {
        if file.path.ends_with("/mod.rs") {
            let better = file.path.trim_end_matches("/mod.rs");
            faults.push(format!("{}: call it {better}.rs", file.path));
        }
        for (line, target) in &file.path_attributes {
            let is_shared = SHARED.iter().any(|tree| target.ends_with(tree));
            // Kbuild compiles the same tree below another module.
            if !is_shared && file.path != "pure/src/lib.rs" {
                faults.push(format!(
                    "{}:{line}: #[path = \"{target}\"]: put the module where its name says",
                    file.path
                ));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: &[(&str, &str)]) -> Graph {
        let files: Vec<(String, String)> = files
            .iter()
            .map(|(path, text)| (format!("kfabric/src/{path}"), (*text).to_owned()))
            .collect();
        Graph::read("kfabric", &files).unwrap()
    }

    #[test]
    fn import_of_a_higher_layer_fails() {
        let planted = graph(&[
            ("kfabric_core.rs", "use crate::ep::Endpoint;"),
            (
                "memory/pin.rs",
                "use crate::sys::lock;\n\nuse crate::{ep::Endpoint};",
            ),
            ("sys.rs", ""),
            ("ep.rs", "use crate::memory::pin;"),
        ]);
        assert_eq!(
            upward(&planted),
            ["kfabric/src/memory/pin.rs:3: layer memory imports ep of the higher layer ep"]
        );
    }

    #[test]
    fn forward_declaration_counts_for_its_module_and_type_alone() {
        let texts = [
            ("op.rs", "use crate::ep::Endpoint;"),
            ("ep.rs", "use crate::op;"),
        ];
        let faults = |forward: &[(&str, &str, &str)]| {
            let mut graph = graph(&texts);
            let mut faults = cut(&mut graph, forward);
            faults.extend(upward(&graph));
            faults
        };
        assert_eq!(faults(&[("op", "ep::Endpoint", "a reason")]), [""; 0]);
        assert_eq!(
            faults(&[("op", "ep::Other", "a reason")]),
            [
                "op no longer imports ep::Other: delete the entry in xtask/src/lint/layers.rs",
                "kfabric/src/op.rs:1: layer op imports ep of the higher layer ep"
            ]
        );
    }

    #[test]
    fn import_between_fronts_fails() {
        let planted = graph(&[
            ("chardev.rs", ""),
            ("chardev/file.rs", "use super::calls;"),
            ("chardev/calls.rs", "use crate::capi;"),
            ("capi.rs", ""),
        ]);
        assert_eq!(
            upward(&planted),
            ["kfabric/src/chardev/calls.rs:1: front chardev imports front capi"]
        );
    }

    #[test]
    fn module_without_a_layer_fails() {
        let faults = upward(&graph(&[("stray.rs", "")]));
        assert_eq!(faults.len(), 1);
        assert!(faults[0].starts_with("kfabric/src/stray.rs: in no layer"));
    }

    #[test]
    fn circle_of_four_files_fails_unless_it_is_in_one_folder() {
        let circle = |names: [&str; 4]| {
            let texts: Vec<String> = (0..4)
                .map(|at| format!("use crate::{};", names[(at + 1) % 4].replace('/', "::")))
                .collect();
            let paths = names.map(|name| format!("{name}.rs"));
            let files: Vec<(&str, &str)> = paths
                .iter()
                .zip(&texts)
                .map(|(path, text)| (path.as_str(), text.as_str()))
                .collect();
            circles("kverbs", &graph(&files)).len()
        };
        assert_eq!(circle(["a", "b", "c", "d"]), 1);
        assert_eq!(circle(["a/x", "a/y", "a/z", "d"]), 1);
        assert_eq!(circle(["a", "a/y", "a/z", "a/u"]), 0);
        let three = graph(&[
            ("a.rs", "use crate::b;"),
            ("b.rs", "use crate::c;"),
            ("c.rs", "use crate::a;"),
        ]);
        assert_eq!(circles("kverbs", &three), [""; 0]);
    }

    #[test]
    fn misplaced_module_fails() {
        let planted = graph(&[
            ("a/mod.rs", ""),
            ("b.rs", "#[path = \"b/c.rs\"]\nmod c;"),
            (
                "kfabric_core.rs",
                "#[path = \"../../pure/src/tree.rs\"]\npub mod pure;",
            ),
        ]);
        assert_eq!(
            places(&planted),
            [
                "kfabric/src/a/mod.rs: call it kfabric/src/a.rs",
                "kfabric/src/b.rs:1: #[path = \"b/c.rs\"]: put the module where its name says",
            ]
        );
    }

    #[test]
    fn figures_are_those_of_the_files() {
        let graph = graph(&[
            ("a.rs", "use crate::b;\n\n"),
            ("b.rs", "use crate::a;\n"),
            ("c.rs", "\n\n\n"),
        ]);
        assert_eq!(
            figures("x", &graph).split_whitespace().collect::<Vec<_>>(),
            ["x", "3", "6", "2", "3", "2"]
        );
    }
}
