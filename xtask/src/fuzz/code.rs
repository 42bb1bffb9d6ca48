// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a module's machine code consists of, as `objdump` shows it: which places report to KCOV,
//! from which of them there is no way on but a panic or memory of no bytes, to which functions nothing leads that
//! programs can do, and which run only while the module is loaded or unloaded.

use std::collections::{BTreeMap, HashMap};

/// The function that the compiler has every edge call.
const REPORT: &str = "__sanitizer_cov_trace_pc";

/// A place that reports: KCOV tells of the address behind the call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Site {
    /// The section.
    pub(super) section: String,
    /// The address behind the call, in it.
    pub(super) at: u64,
    /// The function.
    pub(super) function: String,
    /// From here no path returns: each ends in a call that does not come back.
    pub(super) dead_end: bool,
    /// What leads to the function.
    pub(super) use_: Use,
}

/// What leads to a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Use {
    /// Nothing but modules that are not there.
    Nothing,
    /// Only the module's own beginning and end.
    Loading,
    /// Something that happens in between.
    Running,
}

/// What a relocation refers to: a symbol, or a section and an offset in it.
pub(super) type Place = (String, u64);

/// What leads into a module's code from elsewhere.
#[derive(Debug, Default)]
pub(super) struct Roots {
    /// Tables of functions, and modules that use it.
    pub(super) running: Vec<Place>,
    /// The kernel when it loads and unloads the module.
    pub(super) loading: Vec<Place>,
}

/// What an instruction does with the flow of control.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Flow {
    /// The next one.
    On,
    /// That one.
    Jump(u64),
    /// That one or the next.
    Branch(u64),
    /// Out of the function: back, or to where cannot be told.
    Out,
    /// Nowhere: it does not come back.
    End,
}

/// A function.
#[derive(Default)]
pub(super) struct Function {
    section: String,
    name: String,
    /// What it calls and jumps to: symbols, or sections and offsets.
    calls: Vec<Place>,
    /// What else it refers to: functions that others call for it.
    refers: Vec<Place>,
    code: BTreeMap<u64, Flow>,
    /// Addresses behind calls of [`REPORT`].
    sites: Vec<u64>,
    /// The last instruction, if it is a call or jump whose target a relocation may name.
    open: Option<u64>,
    /// Its target, if no relocation does.
    target: Option<u64>,
    reporting: bool,
}

/// Whether a function of this name never comes back.
fn never_returns(symbol: &str) -> bool {
    let core = symbol.contains("4core") || symbol.contains("5alloc");
    (core && (symbol.contains("panick") || symbol.contains("_fail")))
        || symbol.contains("rust_begin_unwind")
        || matches!(symbol, "rust_helper_BUG" | "__stack_chk_fail" | "panic")
}

/// Whether there is no way through a call of this: what never comes back, and what the kernel
/// crate's allocators call for no bytes at all, which nothing here asks for.
fn no_way_on(symbol: &str) -> bool {
    never_returns(symbol) || symbol.ends_with("dangling_from_layout")
}

impl Function {
    fn instruction(&mut self, at: u64, text: &str) {
        if self.reporting {
            self.sites.push(at);
            self.reporting = false;
        }
        self.open = None;
        self.settle();
        let (name, operand) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let (name, operand) = match name {
            "notrack" | "bnd" | "cs" | "lock" | "rep" | "repz" => {
                let rest = operand.trim();
                rest.split_once(char::is_whitespace).unwrap_or((rest, ""))
            }
            _ => (name, operand),
        };
        let target = || u64::from_str_radix(operand.split_whitespace().next()?, 16).ok();
        let flow = if name.starts_with("call") {
            self.open = Some(at);
            self.target = target();
            Flow::On
        } else if name.starts_with("jmp") {
            self.open = Some(at);
            self.target = target();
            target().map_or(Flow::Out, Flow::Jump)
        } else if name.starts_with('j') {
            self.open = Some(at);
            self.target = target();
            target().map_or(Flow::Out, Flow::Branch)
        } else if name.starts_with("ret") || name.starts_with("iret") || name.starts_with("sysret")
        {
            Flow::Out
        } else if name.starts_with("ud") || name.starts_with("int3") {
            Flow::End
        } else {
            Flow::On
        };
        self.code.insert(at, flow);
    }

    /// The last call or jump went where it says.
    fn settle(&mut self) {
        let to = self.target.take();
        self.calls.extend(to.map(|to| (self.section.clone(), to)));
    }

    fn relocation(&mut self, place: Place) {
        let Some(at) = self.open else {
            self.refers.push(place);
            return;
        };
        // What the instruction says is what is behind it: another function, where it is the last.
        self.target = None;
        let symbol = place.0.as_str();
        if let Some(flow) = self.code.get_mut(&at) {
            match flow {
                Flow::On if symbol == REPORT => self.reporting = true,
                Flow::On if no_way_on(symbol) => *flow = Flow::End,
                Flow::On => {}
                _ => {
                    *flow = if no_way_on(symbol) {
                        Flow::End
                    } else {
                        Flow::Out
                    }
                }
            }
        }
        self.calls.push(place);
    }

    /// Which instructions have a way out.
    fn ways_out(&self) -> HashMap<u64, bool> {
        let addrs: Vec<u64> = self.code.keys().copied().collect();
        let next = |i: usize| addrs.get(i + 1).copied();
        let mut out: HashMap<u64, bool> = HashMap::new();
        // Backwards again and again: loops are few and shallow.
        loop {
            let mut changed = false;
            for (i, at) in addrs.iter().enumerate().rev() {
                let leads = |to: Option<u64>| to.is_some_and(|to| *out.get(&to).unwrap_or(&false));
                let jump = |to: u64| !self.code.contains_key(&to) || leads(Some(to));
                let way = match self.code[at] {
                    Flow::On => leads(next(i)),
                    Flow::Jump(to) => jump(to),
                    Flow::Branch(to) => jump(to) || leads(next(i)),
                    Flow::Out => true,
                    Flow::End => false,
                };
                if way && out.insert(*at, true) != Some(true) {
                    changed = true;
                }
            }
            if !changed {
                return out;
            }
        }
    }

    /// Its sites.
    fn sites(&self) -> impl Iterator<Item = Site> + '_ {
        let out = self.ways_out();
        self.sites.iter().map(move |at| Site {
            section: self.section.clone(),
            at: *at,
            function: self.name.clone(),
            dead_end: !out.get(at).unwrap_or(&false),
            use_: Use::Running,
        })
    }

    fn has(&self, (section, at): &Place) -> bool {
        let first = self.code.keys().next();
        let last = self.code.keys().next_back();
        *section == self.section
            && first.is_some_and(|first| first <= at)
            && last.is_some_and(|last| at <= last)
    }
}

/// Reads what `objdump -dr --no-show-raw-insn` says of a module.
pub(super) fn functions(listing: &str) -> Vec<Function> {
    let mut all = Vec::new();
    let mut section = String::new();
    let mut function = Function::default();
    for line in listing.lines() {
        if let Some(name) = line.strip_prefix("Disassembly of section ") {
            section = name.trim_end_matches(':').to_owned();
        } else if let Some(name) = line.strip_suffix(">:") {
            function.settle();
            all.push(std::mem::take(&mut function));
            let name = name.split_once('<').map_or(name, |(_, name)| name);
            function.name = name.to_owned();
            function.section.clone_from(&section);
        } else if let Some((_, relocation)) = line.split_once(": R_X86_64_") {
            if let Some(mut place) = relocation.split_whitespace().nth(1).map(place) {
                if place.0.starts_with('.') && relocation.starts_with('P') {
                    // Counted from the end of the four bytes.
                    place.1 += 4;
                }
                function.relocation(place);
            }
        } else if let Some((at, text)) = line.split_once(':') {
            if let Ok(at) = u64::from_str_radix(at.trim(), 16) {
                function.instruction(at, text.trim());
            }
        }
    }
    function.settle();
    all.push(function);
    all
}

/// `symbol+0x10` or `symbol-0x4`.
fn place(text: &str) -> Place {
    let (name, off) = text.split_once('+').unwrap_or((text, "0"));
    let name = name.split_once("-0x").map_or(name, |(name, _)| name);
    let off = u64::from_str_radix(off.trim_start_matches("0x"), 16).unwrap_or(0);
    (name.to_owned(), off)
}

/// What a module's data refers to, as `objdump -r` shows it: tables of functions, and how it is
/// loaded and unloaded. What only describes the code, or offers it to other modules, does not
/// count.
pub(super) fn data(listing: &str) -> Roots {
    const DESCRIBES: [&str; 7] = [
        ".text",
        ".debug",
        ".orc_unwind",
        "__ksymtab",
        "__bug_table",
        ".smp_locks",
        ".eh_frame",
    ];
    const LOADS: [&str; 4] = [".gnu.linkonce.this_module", ".init", ".exit", ".fini_array"];
    let mut roots = Roots::default();
    let mut unwanted = Vec::new();
    let mut into = &mut unwanted;
    for line in listing.lines() {
        if let Some(name) = line.strip_prefix("RELOCATION RECORDS FOR [") {
            let is = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
            into = if is(&DESCRIBES) {
                &mut unwanted
            } else if is(&LOADS) {
                &mut roots.loading
            } else {
                &mut roots.running
            };
        } else if !line.starts_with("OFFSET") {
            into.extend(line.split_whitespace().nth(2).map(place));
        }
    }
    roots
}

/// The sites of a module's functions. `roots` is what leads into it: from its data, and from
/// modules that use it.
pub(super) fn sites(functions: &[Function], roots: &Roots) -> Vec<Site> {
    let uses = uses(functions, roots);
    let mut sites: Vec<Site> = Vec::new();
    for (function, use_) in functions.iter().zip(uses) {
        sites.extend(function.sites().map(|site| Site { use_, ..site }));
    }
    sites.sort();
    sites
}

/// What leads to each function.
fn uses(functions: &[Function], roots: &Roots) -> Vec<Use> {
    let by_name: HashMap<&str, usize> = functions
        .iter()
        .enumerate()
        .map(|(i, f)| (f.name.as_str(), i))
        .collect();
    let find = |place: &Place| {
        let named = by_name.get(place.0.as_str()).copied();
        named.or_else(|| functions.iter().position(|function| function.has(place)))
    };
    let mut uses = vec![Use::Nothing; functions.len()];
    let mut loading: Vec<usize> = roots.loading.iter().filter_map(find).collect();
    let mut running: Vec<usize> = roots.running.iter().filter_map(find).collect();
    while let Some(index) = loading.pop() {
        if uses[index] < Use::Loading {
            uses[index] = Use::Loading;
            loading.extend(functions[index].calls.iter().filter_map(find));
            // What the beginning hands to others is called later.
            running.extend(functions[index].refers.iter().filter_map(find));
        }
    }
    while let Some(index) = running.pop() {
        if uses[index] < Use::Running {
            uses[index] = Use::Running;
            let function = &functions[index];
            let all = function.calls.iter().chain(&function.refers);
            running.extend(all.filter_map(find));
        }
    }
    uses
}

/// The symbols that functions refer to, apart by what leads to them; places in their own sections
/// are no other module's business.
pub(super) fn references(functions: &[Function], roots: &Roots) -> Roots {
    let mut out = Roots::default();
    let others = |places: &[Place]| -> Vec<Place> {
        let all = places.iter().filter(|(name, _)| !name.starts_with('.'));
        all.cloned().collect()
    };
    for (function, use_) in functions.iter().zip(uses(functions, roots)) {
        match use_ {
            Use::Loading => out.loading.extend(others(&function.calls)),
            _ => out.running.extend(others(&function.calls)),
        }
        out.running.extend(others(&function.refers));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "
Disassembly of section .text:

0000000000000010 <_one>:
      10:\tpush   %rbp
      11:\tcall   16 <_one+0x6>
\t\t\t12: R_X86_64_PLT32\t__sanitizer_cov_trace_pc-0x4
      16:\ttest   %rax,%rax
      19:\tje     30 <_one+0x20>
      1b:\tcall   20 <_one+0x10>
\t\t\t1c: R_X86_64_PLT32\t__sanitizer_cov_trace_pc-0x4
      20:\tpop    %rbp
      21:\tjmp    26 <_one+0x16>
\t\t\t22: R_X86_64_PLT32\t__x86_return_thunk-0x4
      30:\tcall   35 <_one+0x25>
\t\t\t31: R_X86_64_PLT32\t__sanitizer_cov_trace_pc-0x4
      35:\tcall   3a <_one+0x2a>
\t\t\t36: R_X86_64_PLT32\t_RNvNtCs1_4core9panicking5panic-0x4
      3a:\tud2
";

    #[test]
    fn sites_are_found_with_their_ways_out() {
        let functions = functions(LISTING);
        let found = sites(&functions, &running("_one", 0));
        let seen: Vec<_> = found.iter().map(|s| (s.at, s.dead_end, s.use_)).collect();
        let want = [
            (0x16, false, Use::Running),
            (0x20, false, Use::Running),
            (0x35, true, Use::Running),
        ];
        assert_eq!(seen, want);
        assert!(sites(&functions, &Roots::default())
            .iter()
            .all(|s| s.use_ == Use::Nothing && s.function == "_one"));
        assert!(sites(&functions, &running(".text", 0x10))
            .iter()
            .all(|s| s.use_ == Use::Running));
    }

    fn running(name: &str, at: u64) -> Roots {
        Roots {
            running: vec![(name.into(), at)],
            loading: Vec::new(),
        }
    }

    #[test]
    fn nothing_asks_for_memory_of_no_bytes() {
        let calling = |symbol: &str| {
            let text = LISTING.replace("ud2", "ret");
            let text = text.replace("_RNvNtCs1_4core9panicking5panic", symbol);
            let found = sites(&functions(&text), &running("_one", 0));
            found.iter().any(|s| (s.at, s.dead_end) == (0x35, true))
        };
        assert!(calling("_RNvNtCs1_6kernel5alloc20dangling_from_layout"));
        assert!(!calling("kmalloc"));
    }

    #[test]
    fn a_call_that_ends_a_function_does_not_lead_to_the_next() {
        let text = "Disassembly of section .text:
0 <_first>:
 0:\tcall 5 <_second>
\t\t\t1: R_X86_64_PLT32\t_RNvNtCs1_4core9panicking5panic-0x4
5 <_second>:
 5:\tcall a <_second+5>
\t\t\t6: R_X86_64_PLT32\t__sanitizer_cov_trace_pc-0x4
 a:\tret
";
        let found = sites(&functions(text), &running("_first", 0));
        assert_eq!(found[0].use_, Use::Nothing);
    }

    #[test]
    fn what_loading_calls_is_apart_from_what_it_hands_out() {
        let text = "Disassembly of section .text:
0 <init_module>:
 0:\tlea 0x0(%rip),%rdi
\t\t\t1: R_X86_64_PC32\t_handler-0x4
 7:\tcall 10 <_setup>
 c:\tret
10 <_setup>:
 10:\tcall 15 <_setup+5>
\t\t\t11: R_X86_64_PLT32\t__sanitizer_cov_trace_pc-0x4
 15:\tret
20 <_handler>:
 20:\tcall 25 <_handler+5>
\t\t\t21: R_X86_64_PLT32\t__sanitizer_cov_trace_pc-0x4
 25:\tret
";
        let roots = Roots {
            loading: vec![("init_module".into(), 0)],
            running: Vec::new(),
        };
        let found: Vec<_> = sites(&functions(text), &roots)
            .iter()
            .map(|s| s.use_)
            .collect();
        assert_eq!(found, [Use::Loading, Use::Running]);
    }

    #[test]
    fn a_loop_without_an_exit_is_a_dead_end() {
        let text = "Disassembly of section .text:\n0 <_spin>:\n 0:\tcall 5 <_spin+5>\n\t\t\t1: R_X86_64_PLT32\t__sanitizer_cov_trace_pc-0x4\n 5:\tjmp 0 <_spin>\n";
        assert!(sites(&functions(text), &Roots::default())[0].dead_end);
    }

    #[test]
    fn tables_lead_to_functions_and_descriptions_do_not() {
        let text = "RELOCATION RECORDS FOR [.rodata]:\nOFFSET TYPE VALUE\n0 R_X86_64_64 .text+0x10\n\nRELOCATION RECORDS FOR [__ksymtab]:\n0 R_X86_64_64 f\n\nRELOCATION RECORDS FOR [.gnu.linkonce.this_module]:\n0 R_X86_64_64 init_module\n";
        let found = data(text);
        assert_eq!(found.running, [(".text".into(), 0x10)]);
        assert_eq!(found.loading, [("init_module".into(), 0)]);
    }
}
