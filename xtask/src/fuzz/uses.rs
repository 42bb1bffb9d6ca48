// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reachability of a module's functions: by calls, and by tables of functions in its data.

use super::code::{place, Function, Place};
use std::collections::{BTreeMap, HashMap};

/// Kind of code that leads to a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Use {
    /// No code, except modules that are not loaded.
    Nothing,
    /// Only the module's load and unload.
    Loading,
    /// Code that runs between load and unload.
    Running,
}

/// References into a module from other code.
#[derive(Debug, Default)]
pub(super) struct Roots {
    /// From the kernel, by the module's sections, and from modules that use this one.
    pub(super) running: Vec<Place>,
    /// From the kernel when it loads and unloads the module.
    pub(super) loading: Vec<Place>,
}

/// An object in a module's data.
#[derive(Debug, Default)]
struct Object {
    name: String,
    section: String,
    start: u64,
    end: u64,
    /// References in the object.
    refers: Vec<Place>,
}

/// References of a module's data.
#[derive(Debug, Default)]
pub(super) struct Data {
    /// Tables and other objects, which count if other code refers to them.
    objects: Vec<Object>,
    /// References in the sections that the kernel reads.
    pub(super) roots: Roots,
}

/// Parses the output of `objdump -t -r` for a module's data.
///
/// Sections that only describe code, or export it to other modules, do not count. Nor do the
/// sanitizer's constructors, which refer to every object.
pub(super) fn data(listing: &str) -> Data {
    const DESCRIBES: [&str; 12] = [
        ".text",
        ".init.text",
        ".exit.text",
        ".init_array",
        ".fini_array",
        ".static_call",
        ".debug",
        ".orc_unwind",
        "__ksymtab",
        "__bug_table",
        ".smp_locks",
        ".eh_frame",
    ];
    const LOADS: [&str; 3] = [".gnu.linkonce.this_module", ".init", ".exit"];
    const HOLDS: [&str; 2] = [".data", ".rodata"];
    let mut data = Data::default();
    let mut unwanted = Vec::new();
    let mut section = "";
    let is = |section: &str, starts: &[&str]| starts.iter().any(|s| section.starts_with(s));
    for line in listing.lines() {
        if let Some(name) = line.strip_prefix("RELOCATION RECORDS FOR [") {
            section = name.trim_end_matches("]:");
            data.objects
                .sort_by(|a, b| (&a.section, a.start).cmp(&(&b.section, b.start)));
        } else if let Some(object) = object(line) {
            if is(&object.section, &HOLDS) {
                data.objects.push(object);
            }
        } else if let [at, _, value] = line.split_whitespace().collect::<Vec<_>>()[..] {
            let Ok(at) = u64::from_str_radix(at, 16) else {
                continue;
            };
            let holder = holder(&data.objects, section, at);
            let into = if is(section, &DESCRIBES) {
                &mut unwanted
            } else if is(section, &LOADS) {
                &mut data.roots.loading
            } else if let Some(index) = holder {
                &mut data.objects[index].refers
            } else {
                &mut data.roots.running
            };
            into.push(place(value));
        }
    }
    data
}

/// Parses a line of the symbol table for an object: offset, seven flags, section, tab, size, name.
fn object(line: &str) -> Option<Object> {
    let (place, rest) = line.split_once('\t')?;
    let (start, rest_of_place) = place.split_once(' ')?;
    let flags = rest_of_place
        .get(..7)
        .filter(|flags| flags.ends_with('O'))?;
    let section = rest_of_place.strip_prefix(flags)?.trim().to_owned();
    let (size, name) = rest.split_once(char::is_whitespace)?;
    let start = u64::from_str_radix(start, 16).ok()?;
    Some(Object {
        name: name.trim().trim_start_matches(".hidden ").to_owned(),
        section,
        start,
        end: start + u64::from_str_radix(size, 16).ok()?,
        refers: Vec::new(),
    })
}

/// Returns the object, of sorted ones, that contains this place.
fn holder(objects: &[Object], section: &str, at: u64) -> Option<usize> {
    let behind = objects.partition_point(|o| (o.section.as_str(), o.start) <= (section, at));
    let index = behind.checked_sub(1)?;
    let object = &objects[index];
    (object.section == section && at < object.end).then_some(index)
}

/// A function or an object, by its index.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Node {
    Function(usize),
    Object(usize),
}

/// References between functions and objects of a module.
struct Graph<'a> {
    functions: &'a [Function],
    objects: &'a [Object],
    by_name: HashMap<&'a str, Node>,
    /// Functions by start address.
    by_start: BTreeMap<(&'a str, u64), usize>,
}

impl<'a> Graph<'a> {
    fn new(functions: &'a [Function], objects: &'a [Object]) -> Self {
        let mut by_name = HashMap::new();
        for (i, object) in objects.iter().enumerate() {
            by_name.insert(object.name.as_str(), Node::Object(i));
        }
        let mut by_start = BTreeMap::new();
        for (i, function) in functions.iter().enumerate() {
            by_name.insert(function.name.as_str(), Node::Function(i));
            let start = function.span().map(|(start, _)| start);
            by_start.extend(start.map(|start| ((function.section.as_str(), start), i)));
        }
        Self {
            functions,
            objects,
            by_name,
            by_start,
        }
    }

    /// Returns the function or object that contains the target of a call or jump.
    fn called(&self, (name, at): &Place) -> Option<Node> {
        if let Some(node) = self.by_name.get(name.as_str()) {
            return Some(*node);
        }
        let (start, index) = self.by_start.range(..=(name.as_str(), *at)).next_back()?;
        let (_, last) = self.functions[*index].span()?;
        (start.0 == name && *at <= last).then_some(Node::Function(*index))
    }

    /// Returns the object or function whose address is taken here. An address inside of a function
    /// does not count, because it is an arm of the function's own `match`.
    fn named(&self, place: &Place) -> Option<Node> {
        let (name, at) = place;
        let function = || self.by_start.get(&(name.as_str(), *at)).copied();
        let named = self.by_name.get(name.as_str()).copied();
        named
            .or_else(|| function().map(Node::Function))
            .or_else(|| holder(self.objects, name, *at).map(Node::Object))
    }
}

/// Use of each function and object of a module.
pub(super) struct Uses {
    /// Use of each function.
    pub(super) functions: Vec<Use>,
    objects: Vec<Use>,
}

impl Uses {
    fn of(&mut self, node: Node) -> &mut Use {
        match node {
            Node::Function(index) => &mut self.functions[index],
            Node::Object(index) => &mut self.objects[index],
        }
    }
}

/// Computes the use of each function and object. `roots`: references into the module, besides those
/// of its own data.
pub(super) fn uses(functions: &[Function], data: &Data, roots: &Roots) -> Uses {
    let graph = Graph::new(functions, &data.objects);
    let mut uses = Uses {
        functions: vec![Use::Nothing; functions.len()],
        objects: vec![Use::Nothing; data.objects.len()],
    };
    let all = |own: &[Place], others: &[Place]| -> Vec<Node> {
        let all = own.iter().chain(others);
        all.filter_map(|place| graph.named(place)).collect()
    };
    let mut loading = all(&data.roots.loading, &roots.loading);
    let mut running = all(&data.roots.running, &roots.running);
    while let Some(node) = loading.pop() {
        // Objects that the load function passes on are used later.
        let Node::Function(index) = node else {
            running.push(node);
            continue;
        };
        let use_ = uses.of(node);
        if *use_ < Use::Loading {
            *use_ = Use::Loading;
            let function = &graph.functions[index];
            loading.extend(function.calls.iter().filter_map(|p| graph.called(p)));
            let refers = function.refers.iter().filter_map(|p| graph.named(p));
            // A function's reference to its own address, for logs, is no use.
            running.extend(refers.filter(|refers| *refers != node));
        }
    }
    while let Some(node) = running.pop() {
        let use_ = uses.of(node);
        if *use_ == Use::Running {
            continue;
        }
        *use_ = Use::Running;
        let (calls, refers) = match node {
            Node::Function(index) => {
                let function = &graph.functions[index];
                (function.calls.as_slice(), &function.refers)
            }
            Node::Object(index) => (&[][..], &graph.objects[index].refers),
        };
        running.extend(calls.iter().filter_map(|p| graph.called(p)));
        running.extend(refers.iter().filter_map(|p| graph.named(p)));
    }
    uses
}

/// Returns references from used code to other modules. Places in the module's own sections are left
/// out.
pub(super) fn references(functions: &[Function], data: &Data, uses: &Uses) -> Roots {
    let mut out = Roots::default();
    let others = |places: &[Place]| -> Vec<Place> {
        let all = places.iter().filter(|(name, _)| !name.starts_with('.'));
        all.cloned().collect()
    };
    for (function, use_) in functions.iter().zip(&uses.functions) {
        match use_ {
            Use::Nothing => continue,
            Use::Loading => out.loading.extend(others(&function.calls)),
            Use::Running => out.running.extend(others(&function.calls)),
        }
        out.running.extend(others(&function.refers));
    }
    for (object, use_) in data.objects.iter().zip(&uses.objects) {
        if *use_ != Use::Nothing {
            out.running.extend(others(&object.refers));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::code::functions;
    use super::*;

    /// Returns functions of a 5-byte call and a return, 0x10 bytes apart, from names and
    /// relocations.
    fn code(all: &[(&str, &str)]) -> Vec<Function> {
        let mut text = String::from("Disassembly of section .text:\n");
        for (i, (name, relocation)) in all.iter().enumerate() {
            let at = i * 0x10;
            let (next, end) = (at + 5, at + 0xa);
            text += &format!("{at:x} <{name}>:\n {at:x}:\tcall {next:x} <{name}+5>\n");
            text += "\t\t\t1: R_X86_64_PLT32\t__sanitizer_cov_trace_pc-0x4\n";
            text += &match relocation.strip_prefix('&') {
                Some(place) => format!(" {next:x}:\tlea 0x0(%rip),%rdi\n\t\t\t6: {place}\n"),
                None => format!(" {next:x}:\tcall {end:x} <x>\n\t\t\t6: {relocation}\n"),
            };
            text += &format!(" {end:x}:\tret\n");
        }
        // The first element is the text before all functions.
        functions(&text).split_off(1)
    }

    fn found(functions: &[Function], data: &Data, roots: &Roots) -> Vec<Use> {
        uses(functions, data, roots).functions
    }

    fn running(name: &str, at: u64) -> Roots {
        Roots {
            running: vec![(name.into(), at)],
            loading: Vec::new(),
        }
    }

    const NONE: &str = "R_X86_64_PLT32\tkfree-0x4";

    #[test]
    fn what_is_called_by_name_or_place_is_used() {
        let functions = code(&[("_a", "R_X86_64_PLT32\t_c-0x4"), ("_b", NONE), ("_c", NONE)]);
        let none = Data::default();
        let want = [Use::Running, Use::Nothing, Use::Running];
        assert_eq!(found(&functions, &none, &running("_a", 0)), want);
        assert_eq!(found(&functions, &none, &running(".text", 0)), want);
        let nothing = found(&functions, &none, &Roots::default());
        assert_eq!(nothing, [Use::Nothing; 3]);
    }

    #[test]
    fn a_call_that_ends_a_function_does_not_lead_to_the_next() {
        let text = "Disassembly of section .text:
0 <_first>:
 0:\tcall 5 <_second>
\t\t\t1: R_X86_64_PLT32\t_RNvNtCs1_4core9panicking5panic-0x4
5 <_second>:
 5:\tret
";
        let functions = functions(text).split_off(1);
        let uses = found(&functions, &Data::default(), &running("_first", 0));
        assert_eq!(uses, [Use::Running, Use::Nothing]);
    }

    #[test]
    fn what_loading_calls_is_apart_from_what_it_hands_out() {
        let functions = code(&[
            ("init_module", "&R_X86_64_PC32\t_handler-0x4"),
            ("_handler", NONE),
            ("cleanup_module", "R_X86_64_PLT32\t_undo-0x4"),
            ("_undo", "&R_X86_64_PC32\t_undo-0x4"),
        ]);
        let data = data(
            "RELOCATION RECORDS FOR [.gnu.linkonce.this_module]:
0 R_X86_64_64 init_module
8 R_X86_64_64 cleanup_module
",
        );
        let uses = found(&functions, &data, &Roots::default());
        let want = [Use::Loading, Use::Running, Use::Loading, Use::Loading];
        assert_eq!(uses, want);
    }

    const TABLES: &str = "
SYMBOL TABLE:
0000000000000000 l    df *ABS*\t0000000000000000 a.c
0000000000000020 l     O .rodata\t0000000000000010 ops
0000000000000000 l     F .text\t000000000000000b _user
0000000000000030 g     O .rodata\t0000000000000010 other_ops
0000000000000000 l     O .data\t0000000000000010 __unnamed_1

RELOCATION RECORDS FOR [.rodata]:
OFFSET TYPE VALUE
0000000000000000 R_X86_64_64 .text+0x35
0000000000000028 R_X86_64_64 .text+0x10
0000000000000030 R_X86_64_64 _other

RELOCATION RECORDS FOR [.data]:
0000000000000000 R_X86_64_64 .text+0x20

RELOCATION RECORDS FOR [.init_array]:
0000000000000000 R_X86_64_64 .text+0x40

RELOCATION RECORDS FOR [__ksymtab]:
0000000000000000 R_X86_64_PC32 _exported

RELOCATION RECORDS FOR [_ftrace_events]:
0000000000000000 R_X86_64_64 other_ops
";

    #[test]
    fn a_table_leads_on_if_something_leads_to_it() {
        let functions = code(&[
            ("_user", "&R_X86_64_PC32\t.rodata+0x1c"),
            ("_op", NONE),
            ("_unnamed", NONE),
            ("_exported", NONE),
            // A constructor of the sanitizer, which refers to every object.
            ("_constructor", "&R_X86_64_PC32\t__unnamed_1-0x4"),
            ("_other", NONE),
        ]);
        let data = data(TABLES);
        let (no, yes) = (Use::Nothing, Use::Running);
        let uses = found(&functions, &data, &Roots::default());
        assert_eq!(uses, [no, no, no, no, no, yes]);
        let uses = found(&functions, &data, &running("_user", 0));
        assert_eq!(uses, [yes, yes, no, no, no, yes]);
    }

    #[test]
    fn the_arms_of_a_match_do_not_lead_into_it() {
        let functions = code(&[("_a", NONE), ("_b", NONE)]);
        let at = |place| {
            let line = "RELOCATION RECORDS FOR [.rodata]:\n0 R_X86_64_64 ";
            found(
                &functions,
                &data(&format!("{line}{place}\n")),
                &Roots::default(),
            )
        };
        assert_eq!(at(".text+0x15"), [Use::Nothing; 2]);
        assert_eq!(at(".text+0x10"), [Use::Nothing, Use::Running]);
    }

    #[test]
    fn only_what_is_used_leads_into_other_modules() {
        let functions = code(&[
            ("_a", "R_X86_64_PLT32\tkf_called-0x4"),
            ("_b", "R_X86_64_PLT32\tkf_uncalled-0x4"),
            ("_c", "&R_X86_64_PC32\t.rodata+0x1c"),
        ]);
        let tables = TABLES.replace(".text+0x10", "kf_in_table");
        let data = data(&tables.replace("_other\n", "kf_in_another\n"));
        let into = |roots: &Roots| {
            let uses = uses(&functions, &data, roots);
            let mut names: Vec<_> = references(&functions, &data, &uses)
                .running
                .into_iter()
                .map(|place| place.0)
                .filter(|name| name.starts_with("kf"))
                .collect();
            names.sort();
            names
        };
        assert_eq!(into(&running("_a", 0)), ["kf_called", "kf_in_another"]);
        assert_eq!(into(&running("_c", 0)), ["kf_in_another", "kf_in_table"]);
    }
}
