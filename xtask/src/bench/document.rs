// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask bench --write`: the tables of `docs/performance.md`, from the figures of one run.
//!
//! A table lies between the lines `<!-- bench NAME -->` and `<!-- end of bench NAME -->`. A run
//! replaces the tables of the benchmarks that it ran. The prose around the tables is hand-written.

use super::Figure;
use anyhow::{Context as _, Result};
use serde_json::Value;

/// Nanoseconds that one instruction takes in the guest.
const INSTRUCTION: f64 = 2.0;

/// The figures of one benchmark.
struct Run<'a> {
    bench: &'a str,
    figures: Vec<&'a Figure>,
}

impl Run<'_> {
    /// Finds the figure of `case` that is compared with `peer`, or with anything if `peer` is empty.
    fn get(&self, case: &str, peer: &str) -> Result<&Figure> {
        self.figures
            .iter()
            .find(|figure| {
                figure.case == case && figure.peer.as_deref().unwrap_or_default().ends_with(peer)
            })
            .copied()
            .with_context(|| format!("the run has no figure {} {case}", self.bench))
    }
}

/// A table of the page: its name, the benchmark that it needs, and its rows.
type Table = (&'static str, &'static str, fn(&Run<'_>) -> Result<String>);

const TABLES: [Table; 10] = [
    ("keys", "keys", keys),
    ("kernel", "kernel", kernel),
    ("shm, one-sided", "shm", one_sided),
    ("shm, messages", "shm", messages),
    ("auth", "auth", auth),
    ("blk", "blk", blk),
    ("reg", "reg", reg),
    ("lat and bw", "lat", perftest),
    ("libfabric", "libfabric", libfabric),
    ("pmem", "pmem", pmem),
];

/// Replaces the tables of the benchmarks that ran. Returns the new page.
///
/// # Errors
///
/// If a table lacks one of its figures, or the page lacks the marks of a table.
pub(super) fn write(page: &str, figures: &[Figure]) -> Result<String> {
    let mut page = page.to_owned();
    for (name, bench, make) in TABLES {
        let also = if bench == "lat" { "bw" } else { bench };
        let run = Run {
            bench,
            figures: figures
                .iter()
                .filter(|figure| figure.bench == bench || figure.bench == also)
                .collect(),
        };
        if !run.figures.is_empty() {
            page = replace(&page, name, &make(&run)?)?;
        }
    }
    Ok(page)
}

/// Replaces the text between the marks of a table.
fn replace(page: &str, name: &str, table: &str) -> Result<String> {
    let (start, end) = (
        format!("<!-- bench {name} -->\n"),
        format!("<!-- end of bench {name} -->"),
    );
    let marks = || format!("the page has no table {name}");
    let (before, rest) = page.split_once(&start).with_context(marks)?;
    let (_, after) = rest.split_once(&end).with_context(marks)?;
    Ok(format!("{before}{start}\n{table}\n{end}{after}"))
}

/// Formats a table. All columns but the first are numbers.
fn markdown(head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | ")).replace("|  |", "| |");
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let mut text = line(&head).replace("|  |", "| |");
    text += &format!("|{}\n", "---|".repeat(head.len()));
    for row in rows {
        text += &line(row).replace("|  |", "| |");
    }
    text
}

/// Formats a number with about three significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => thousands(value),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Formats a whole number with a comma after each three digits.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i != 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The target of a figure, without the relation.
fn wanted(figure: &Figure) -> String {
    match &figure.wanted {
        Some(Value::String(text)) => text.trim_start_matches(['<', '>', '=', ' ']).to_owned(),
        _ => String::new(),
    }
}

fn ratio(figure: &Figure) -> String {
    figure
        .ratio
        .map(|ratio| format!("{ratio:.2}"))
        .unwrap_or_default()
}

/// A value with its ratio in parentheses.
fn with_ratio(figure: &Figure) -> String {
    format!("{} ({})", short(figure.value), ratio(figure))
}

fn peer(figure: &Figure) -> String {
    figure.peer_value.map(short).unwrap_or_default()
}

fn keys(run: &Run<'_>) -> Result<String> {
    let head = [
        "window of region",
        "registering",
        "assign",
        "revoke",
        "pair",
        "wanted",
        "batch, per key",
        "wanted",
        "ordered, alone",
        "in a row",
        "wanted",
        "ordered batch, per key",
    ];
    let programs = [
        "4 KiB of 4 KiB",
        "4 KiB of 256 MiB",
        "64 KiB of 64 KiB",
        "64 KiB of 256 MiB",
        "1 MiB of 1 MiB",
        "1 MiB of 2 MiB",
        "1 MiB of 256 MiB",
        "2 MiB of 256 MiB",
    ];
    let kernels = ["4 KiB of 4 KiB", "64 KiB of 256 MiB", "1 MiB of 256 MiB"];
    // The pair has a second figure, beside the pair of a page.
    let get = |case: String| run.get(&case, "of the window");
    let mut rows = Vec::new();
    for window in programs {
        let (pair, batch) = (
            get(format!("pair {window}"))?,
            get(format!("batch {window}"))?,
        );
        let row = get(format!("ordered assign, one of 64 in a row {window}"))?;
        rows.push(vec![
            window.to_owned(),
            peer(pair),
            short(get(format!("assign {window}"))?.value),
            short(get(format!("revoke {window}"))?.value),
            with_ratio(pair),
            wanted(pair),
            with_ratio(batch),
            wanted(batch),
            with_ratio(get(format!("ordered assign {window}"))?),
            with_ratio(row),
            wanted(row),
            with_ratio(get(format!("ordered batch, assign {window}"))?),
        ]);
    }
    for window in ["4 KiB", "64 KiB", "1 MiB"] {
        let case = |what: &str| format!("{what} {window} of 1 MiB, invalidated");
        let (pair, batch) = (get(case("pair"))?, get(case("batch"))?);
        let mut row = vec![
            format!("{window} of 1 MiB, invalidated"),
            peer(pair),
            short(get(case("assign"))?.value),
            short(get(case("revoke"))?.value),
            with_ratio(pair),
            wanted(pair),
            with_ratio(batch),
            wanted(batch),
        ];
        row.resize(head.len(), String::new());
        rows.push(row);
    }
    for window in kernels {
        let case = |what: &str| format!("{what} {window}, kernel memory");
        let pair = get(case("pair"))?;
        let mut row = vec![
            format!("{window}, kernel's"),
            peer(pair),
            short(get(case("assign"))?.value),
            short(get(case("revoke"))?.value),
            with_ratio(pair),
            String::new(),
            with_ratio(get(case("batch"))?),
        ];
        row.resize(head.len(), String::new());
        rows.push(row);
    }
    Ok(markdown(&head, &rows))
}

fn kernel(run: &Run<'_>) -> Result<String> {
    let head = [
        "",
        "C",
        "Rust",
        "`ib_alloc_cq`",
        "ratios",
        "`ib_poll_cq`",
        "ratios",
    ];
    let mut rows = Vec::new();
    for op in ["send", "write", "read"] {
        for size in ["8 B", "4 KiB", "64 KiB"] {
            for (depth, name) in [("1 at once", "one at a time"), ("16 at once", "16 at once")] {
                let get = |api: &str, peer| run.get(&format!("{op} {size}, {depth}, {api}"), peer);
                let (c, rust) = (get("C", "ib_alloc_cq")?, get("Rust", "ib_alloc_cq")?);
                let (c_poll, rust_poll) = (get("C", "ib_poll_cq")?, get("Rust", "ib_poll_cq")?);
                let count = |ns: f64| thousands(ns / INSTRUCTION);
                rows.push(vec![
                    format!("{op} {size}, {name}"),
                    count(c.value),
                    count(rust.value),
                    c.peer_value.map(count).unwrap_or_default(),
                    format!("{}, {}", ratio(c), ratio(rust)),
                    c_poll.peer_value.map(count).unwrap_or_default(),
                    format!("{}, {}", ratio(c_poll), ratio(rust_poll)),
                ]);
            }
        }
    }
    Ok(markdown(&head, &rows))
}

/// A table with a column for each size, and rows for ours, the peer's, and the ratio.
fn by_size(
    run: &Run<'_>,
    case: &str,
    sizes: &[&str],
    scale: f64,
    names: [&str; 3],
) -> Result<String> {
    let figures: Vec<&Figure> = sizes
        .iter()
        .map(|size| run.get(&format!("{case} {size}"), ""))
        .collect::<Result<_>>()?;
    let row = |name: &str, cell: &dyn Fn(&Figure) -> String| {
        let mut cells = vec![name.to_owned()];
        cells.extend(figures.iter().map(|figure| cell(figure)));
        cells
    };
    let mut head = vec![""];
    head.extend(sizes);
    let rows = [
        row(names[0], &|figure| short(figure.value / scale)),
        row(names[1], &|figure| {
            figure
                .peer_value
                .map(|value| short(value / scale))
                .unwrap_or_default()
        }),
        row(names[2], &|figure| ratio(figure)),
    ];
    Ok(markdown(&head, &rows))
}

fn one_sided(run: &Run<'_>) -> Result<String> {
    let sizes = ["4 KiB", "64 KiB", "1 MiB", "16 MiB", "64 MiB"];
    let names = [
        "write",
        "`process_vm_writev`",
        "ratio (wanted: 0.6 at 4 KiB, 0.7 from 64 KiB on)",
    ];
    by_size(run, "write", &sizes, 1.0, names)
}

fn messages(run: &Run<'_>) -> Result<String> {
    let sizes = ["8 B", "64 B", "1 KiB", "4 KiB", "64 KiB"];
    let names = ["rings, us", "libfabric's shm, us", "ratio"];
    by_size(run, "message", &sizes, 1000.0, names)
}

fn auth(run: &Run<'_>) -> Result<String> {
    let head = [
        "",
        "enforce",
        "open, same auth key",
        "open, no auth key",
        "wanted",
    ];
    let cell = |figure: &Figure| {
        let ratio = figure.ratio.unwrap_or_default();
        format!("{} ({ratio:.3})", peer(figure))
    };
    let mut rows = Vec::new();
    for case in [
        "open an endpoint",
        "open and enable one",
        "assign and revoke a key",
    ] {
        let (same, none) = (
            run.get(case, "same auth key")?,
            run.get(case, "no auth key")?,
        );
        rows.push(vec![
            case.to_owned(),
            short(same.value),
            cell(same),
            cell(none),
            wanted(same),
        ]);
    }
    let asked = run.get("open an endpoint, agent asked", "")?;
    rows.push(vec![
        asked.case.clone(),
        short(asked.value),
        String::new(),
        String::new(),
        String::new(),
    ]);
    Ok(markdown(&head, &rows))
}

/// A row for each figure: ours, the peer's, and the ratio.
fn list(head: &[&str], figures: &[&Figure], cell: impl Fn(&Figure, f64) -> String) -> String {
    let rows: Vec<Vec<String>> = figures
        .iter()
        .map(|figure| {
            let mut row = vec![
                figure.case.clone(),
                cell(figure, figure.value),
                figure
                    .peer_value
                    .map(|value| cell(figure, value))
                    .unwrap_or_default(),
                ratio(figure),
                wanted(figure),
            ];
            row.truncate(head.len());
            row
        })
        .collect();
    markdown(head, &rows)
}

fn blk(run: &Run<'_>) -> Result<String> {
    let head = ["", "kfblk", "nvme-rdma", "ratio", "wanted"];
    Ok(list(&head, &run.figures, |_, value| thousands(value)))
}

fn reg(run: &Run<'_>) -> Result<String> {
    let head = ["", "kfabric", "`ibv_reg_mr` + `ibv_dereg_mr`", "ratio"];
    Ok(list(&head, &run.figures, |_, value| short(value)))
}

fn perftest(run: &Run<'_>) -> Result<String> {
    let head = ["", "libkfabric", "perftest", "ratio"];
    Ok(list(&head, &run.figures, |figure, value| {
        format!("{} {}", short(value), figure.unit)
    }))
}

fn pmem(run: &Run<'_>) -> Result<String> {
    let head = ["", "us", "compared with", "us", "ratio", "wanted"];
    let rows: Vec<Vec<String>> = run
        .figures
        .iter()
        .map(|figure| {
            vec![
                figure.case.clone(),
                short(figure.value),
                figure.peer.clone().unwrap_or_default(),
                figure.peer_value.map(short).unwrap_or_default(),
                ratio(figure),
                wanted(figure),
            ]
        })
        .collect();
    Ok(markdown(&head, &rows))
}

/// A row for each case, a column for each way to a peer.
fn libfabric(run: &Run<'_>) -> Result<String> {
    // Columns without a figure are left out.
    let mut columns = vec![
        ("kverbs", "kverbs, to `verbs`"),
        ("kverbs by rxm", "kverbs by rxm, to `verbs;ofi_rxm`"),
        ("kshm", "kshm, to `shm`"),
        ("kshm by rxm", "kshm by rxm, to `shm`"),
        ("kshm, rings", "kshm with rings, to `shm`"),
        ("kshm by rxm, rings", "kshm with rings by rxm, to `shm`"),
    ];
    columns.retain(|(column, _)| {
        let mut names = run.figures.iter().map(|f| f.case.split_once(": "));
        names.any(|name| name.is_some_and(|(of, _)| of == *column))
    });
    let mut cases: Vec<(&str, &str)> = Vec::new();
    for figure in &run.figures {
        let (_, case) = figure
            .case
            .split_once(": ")
            .context("a case without a column")?;
        if !cases.iter().any(|(known, _)| *known == case) {
            cases.push((case, &figure.unit));
        }
    }
    // The datagrams have tagged messages, which follow the others.
    let kinds = ["message", "tagged message", "write", "read", "registration"];
    let kind = |case: &str| {
        kinds
            .iter()
            .position(|kind| case.split(',').next() == Some(kind))
    };
    cases.sort_by_key(|(case, _)| kind(case));
    let rows: Vec<Vec<String>> = cases
        .iter()
        .map(|(case, unit)| {
            let cell = |(column, _): &(&str, &str)| {
                run.get(&format!("{column}: {case}"), "")
                    .map(|figure| match figure.ratio {
                        Some(_) => with_ratio(figure),
                        None => short(figure.value),
                    })
                    .unwrap_or_default()
            };
            let unit = if *unit == "/s" { "1/s" } else { unit };
            let head = std::iter::once(format!("{case}, {unit}"));
            head.chain(columns.iter().map(cell)).collect()
        })
        .collect();
    let mut head = vec![""];
    head.extend(columns.iter().map(|(_, title)| title));
    Ok(markdown(&head, &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(bench: &str, case: &str, value: f64, peer_value: Option<f64>) -> Figure {
        Figure {
            bench: bench.to_owned(),
            case: case.to_owned(),
            value,
            unit: "us".to_owned(),
            peer: peer_value.map(|_| "peer".to_owned()),
            peer_value,
            ratio: peer_value.map(|peer| value / peer),
            wanted: Some(Value::String("<= 0.8".to_owned())),
        }
    }

    #[test]
    fn a_run_replaces_its_own_tables_alone() {
        let page = "a\n<!-- bench reg -->\nold\n<!-- end of bench reg -->\nb\n";
        let run = [figure("reg", "4 KiB", 20.04, Some(40.0))];
        let text = write(page, &run).unwrap();
        assert_eq!(
            text,
            "a\n<!-- bench reg -->\n\n\
             | | kfabric | `ibv_reg_mr` + `ibv_dereg_mr` | ratio |\n\
             |---|---|---|---|\n\
             | 4 KiB | 20.0 | 40.0 | 0.50 |\n\
             \n<!-- end of bench reg -->\nb\n"
        );
        assert_eq!(write(&text, &run).unwrap(), text);
        assert_eq!(write(&text, &[]).unwrap(), text);
    }

    #[test]
    fn a_table_without_one_of_its_figures_is_an_error() {
        let page = "<!-- bench keys -->\n<!-- end of bench keys -->\n";
        let error = write(page, &[figure("keys", "pair", 1.0, None)]).unwrap_err();
        assert!(error.to_string().contains("no figure keys pair"), "{error}");
        assert!(write("", &[figure("reg", "4 KiB", 1.0, None)]).is_err());
    }

    #[test]
    fn numbers_have_three_digits() {
        let shown: Vec<String> = [0.123_4, 5.678, 56.78, 567.8, 5678.9, 1_234_567.0]
            .into_iter()
            .map(short)
            .collect();
        assert_eq!(shown, ["0.12", "5.68", "56.8", "568", "5,679", "1,234,567"]);
    }

    #[test]
    fn the_page_has_the_marks_of_every_table() {
        let page = include_str!("../../../docs/performance.md");
        for (name, ..) in TABLES {
            assert!(replace(page, name, "").is_ok(), "{name}");
        }
    }
}
