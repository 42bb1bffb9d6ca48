// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a module's machine code consists of, as `objdump` shows it: which places report to KCOV,
//! and from which of them there is no way on but a panic.

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

/// A function being read.
#[derive(Default)]
struct Function {
    name: String,
    code: BTreeMap<u64, Flow>,
    /// Addresses behind calls of [`REPORT`].
    sites: Vec<u64>,
    /// The last instruction, if it is a call or jump whose target a relocation may name.
    open: Option<u64>,
    reporting: bool,
}

/// Whether a function of this name never comes back.
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
            Flow::On
        } else if name.starts_with("jmp") {
            self.open = Some(at);
            target().map_or(Flow::Out, Flow::Jump)
        } else if name.starts_with('j') {
            self.open = Some(at);
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

    fn relocation(&mut self, symbol: &str) {
        let Some(at) = self.open else { return };
        let Some(flow) = self.code.get_mut(&at) else {
            return;
        };
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

    fn finish(self, section: &str, sites: &mut Vec<Site>) {
        let out = self.ways_out();
        for at in &self.sites {
            sites.push(Site {
                section: section.to_owned(),
                at: *at,
                function: self.name.clone(),
                dead_end: !out.get(at).unwrap_or(&false),
            });
        }
    }
}

/// Reads what `objdump -dr --no-show-raw-insn` says of a module.
pub(super) fn sites(listing: &str) -> Vec<Site> {
    let mut sites = Vec::new();
    let mut section = String::new();
    let mut function = Function::default();
    for line in listing.lines() {
        if let Some(name) = line.strip_prefix("Disassembly of section ") {
            std::mem::take(&mut function).finish(&section, &mut sites);
            section = name.trim_end_matches(':').to_owned();
        } else if let Some(name) = line.strip_suffix(">:") {
            std::mem::take(&mut function).finish(&section, &mut sites);
            let name = name.split_once('<').map_or(name, |(_, name)| name);
            function.name = name.to_owned();
        } else if let Some((_, relocation)) = line.split_once(": R_X86_64_") {
            let symbol = relocation.split_whitespace().nth(1).unwrap_or("");
            let symbol = symbol.split(['-', '+']).next().unwrap_or("");
            function.relocation(symbol);
        } else if let Some((at, text)) = line.split_once(':') {
            if let Ok(at) = u64::from_str_radix(at.trim(), 16) {
                function.instruction(at, text.trim());
            }
        }
    }
    function.finish(&section, &mut sites);
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
        let found = sites(LISTING);
        let seen: Vec<_> = found.iter().map(|s| (s.at, s.dead_end)).collect();
        assert_eq!(seen, [(0x16, false), (0x20, false), (0x35, true)]);
        assert!(found
            .iter()
            .all(|s| s.section == ".text" && s.function == "_one"));
    }

    #[test]
    fn a_loop_without_an_exit_is_a_dead_end() {
        let text = "Disassembly of section .text:\n0 <_spin>:\n 0:\tcall 5 <_spin+5>\n\t\t\t1: R_X86_64_PLT32\t__sanitizer_cov_trace_pc-0x4\n 5:\tjmp 0 <_spin>\n";
        assert!(sites(text)[0].dead_end);
    }
}
