// SPDX-License-Identifier: MIT OR Apache-2.0

//! Analysis of a module's machine code, as `objdump` shows it: the places that report to KCOV, and
//! those of them from which every path ends in a panic.

use super::uses::Use;
use std::collections::{BTreeMap, HashMap};

/// The function that the compiler calls on every edge.
const REPORT: &str = "__sanitizer_cov_trace_pc";

/// A place that reports to KCOV, which records the address after the call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Site {
    /// The section of the place.
    pub(super) section: String,
    /// Offset of the address after the call in its section.
    pub(super) at: u64,
    /// The function that contains the place.
    pub(super) function: String,
    /// Dead end: no path from here returns; each ends in a call that never returns.
    pub(super) dead_end: bool,
    /// Kind of code that leads to the function.
    pub(super) use_: Use,
}

/// Target of a relocation: a symbol, or a section and an offset in it.
pub(super) type Place = (String, u64);

/// Effect of an instruction on the flow of control.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Flow {
    /// Continues with the next instruction.
    On,
    /// Jumps to an address.
    Jump(u64),
    /// Continues with the next instruction, or jumps to an address.
    Branch(u64),
    /// Leaves the function: returns, or jumps to an unknown address.
    Out,
    /// Calls a function that never returns.
    End,
}

/// A function of a module.
#[derive(Default)]
pub(super) struct Function {
    /// The section of the function.
    pub(super) section: String,
    /// The symbol of the function.
    pub(super) name: String,
    /// Targets of calls and jumps: symbols, or sections and offsets.
    pub(super) calls: Vec<Place>,
    /// Other references: functions that other code calls on its behalf, and tables of functions.
    pub(super) refers: Vec<Place>,
    code: BTreeMap<u64, Flow>,
    /// Addresses after calls of [`REPORT`].
    sites: Vec<u64>,
    /// The last instruction, if it is a call or jump whose target a relocation may name.
    open: Option<u64>,
    /// The target in that instruction, for use if no relocation names one.
    target: Option<u64>,
    reporting: bool,
}

/// Returns whether a function of this name never returns.
fn never_returns(symbol: &str) -> bool {
    let core = symbol.contains("4core") || symbol.contains("5alloc");
    (core && (symbol.contains("panick") || symbol.contains("_fail")))
        || symbol.contains("rust_begin_unwind")
        || matches!(symbol, "rust_helper_BUG" | "__stack_chk_fail" | "panic")
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

    /// Resolves the last call or jump to the address in the instruction.
    fn settle(&mut self) {
        let to = self.target.take();
        self.calls.extend(to.map(|to| (self.section.clone(), to)));
    }

    fn relocation(&mut self, place: Place) {
        let Some(at) = self.open else {
            self.refers.push(place);
            return;
        };
        // A relocation overrides the address in the instruction, which may be in the next function.
        self.target = None;
        let symbol = place.0.as_str();
        if let Some(flow) = self.code.get_mut(&at) {
            match flow {
                Flow::On if symbol == REPORT => self.reporting = true,
                Flow::On if never_returns(symbol) => *flow = Flow::End,
                Flow::On => {}
                _ => {
                    *flow = if never_returns(symbol) {
                        Flow::End
                    } else {
                        Flow::Out
                    }
                }
            }
        }
        self.calls.push(place);
    }

    /// Returns for each instruction whether a path from it leaves the function.
    fn ways_out(&self) -> HashMap<u64, bool> {
        let addrs: Vec<u64> = self.code.keys().copied().collect();
        let next = |i: usize| addrs.get(i + 1).copied();
        let mut out: HashMap<u64, bool> = HashMap::new();
        // Iterates backwards until nothing changes; loops are few and shallow.
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

    /// Returns the reporting places of the function.
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

    /// Returns the addresses of the first and last instructions.
    pub(super) fn span(&self) -> Option<(u64, u64)> {
        Some((*self.code.keys().next()?, *self.code.keys().next_back()?))
    }
}

/// Parses the output of `objdump -dr --no-show-raw-insn` for a module.
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
                    // The offset counts from the end of the four bytes.
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

/// Parses a place such as `symbol+0x10` or `symbol-0x4`.
pub(super) fn place(text: &str) -> Place {
    let (name, off) = text.split_once('+').unwrap_or((text, "0"));
    let name = name.split_once("-0x").map_or(name, |(name, _)| name);
    let off = u64::from_str_radix(off.trim_start_matches("0x"), 16).unwrap_or(0);
    (name.to_owned(), off)
}

/// Returns the reporting places of all functions, with the use of each function.
pub(super) fn sites(functions: &[Function], uses: &[Use]) -> Vec<Site> {
    let mut sites: Vec<Site> = Vec::new();
    for (function, use_) in functions.iter().zip(uses) {
        sites.extend(function.sites().map(|site| Site {
            use_: *use_,
            ..site
        }));
    }
    sites.sort();
    sites
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
        let found = found(&functions);
        let seen: Vec<_> = found.iter().map(|s| (s.at, s.dead_end)).collect();
        assert_eq!(seen, [(0x16, false), (0x20, false), (0x35, true)]);
        assert!(found
            .iter()
            .all(|s| s.use_ == Use::Loading && s.function == "_one"));
    }

    fn found(functions: &[Function]) -> Vec<Site> {
        sites(functions, &vec![Use::Loading; functions.len()])
    }

    #[test]
    fn a_loop_without_an_exit_is_a_dead_end() {
        let text = "Disassembly of section .text:\n0 <_spin>:\n 0:\tcall 5 <_spin+5>\n\t\t\t1: R_X86_64_PLT32\t__sanitizer_cov_trace_pc-0x4\n 5:\tjmp 0 <_spin>\n";
        assert!(found(&functions(text))[0].dead_end);
    }
}
