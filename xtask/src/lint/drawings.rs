// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks that each drawing's image was made from its present source.

use super::files::within;
use super::Lint;
use crate::chroot::{command, Bind};
use crate::setup::stage;
use anyhow::{ensure, Context as _, Result};
use std::process::Stdio;

/// The folder of the drawings: `NAME.dot` is the source, `NAME.svg` the image.
const FOLDER: &str = "docs/drawings";

/// Each drawing has an image that names its source's key.
pub(super) fn drawings(lint: &Lint<'_>) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let sources = lint
        .files
        .iter()
        .filter(|path| within(path, FOLDER) && path.ends_with(".dot"));
    for source in sources {
        let text = std::fs::read_to_string(lint.ctx.repo.join(source))?;
        let image = format!("{}.svg", source.trim_end_matches(".dot"));
        let mark = mark(source, &text);
        let there = std::fs::read_to_string(lint.ctx.repo.join(&image)).unwrap_or_default();
        if there.contains(&mark) {
            continue;
        }
        if lint.fix {
            let svg = render(lint, source)?;
            std::fs::write(lint.ctx.repo.join(&image), marked(&svg, &mark)?)?;
        } else {
            faults.push(format!(
                "{image} is out of step with {source}; cargo xtask lint --fix draws it"
            ));
        }
    }
    Ok(faults)
}

/// The comment by which an image names its source.
fn mark(source: &str, text: &str) -> String {
    let name = source.rsplit('/').next().unwrap_or(source);
    format!(
        "<!-- SPDX-License-Identifier: GPL-2.0 OR MIT -->\n<!-- {name} {} -->",
        stage::key(&[text])
    )
}

/// Draws with the build root's dot(1).
fn render(lint: &Lint<'_>, source: &str) -> Result<String> {
    let output = command(
        &lint.rig.root,
        &[Bind::same(&lint.ctx.repo)],
        &lint.ctx.repo,
        &["dot", "-Tsvg", source],
    )
    .stdin(Stdio::null())
    .stderr(Stdio::inherit())
    .output()
    .context("starting dot")?;
    ensure!(output.status.success(), "dot fails for {source}");
    Ok(String::from_utf8(output.stdout)?)
}

/// The image with `mark` behind its first line, which declares XML.
fn marked(svg: &str, mark: &str) -> Result<String> {
    let (declaration, rest) = svg.split_once('\n').context("an empty image")?;
    Ok(format!("{declaration}\n{mark}\n{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_of_a_changed_source_is_out_of_step() {
        let image = marked("<?xml?>\n<svg/>\n", &mark("docs/a.dot", "graph {}")).unwrap();
        assert!(image.starts_with("<?xml?>\n<!-- SPDX"));
        assert!(image.contains(&mark("docs/a.dot", "graph {}")));
        assert!(!image.contains(&mark("docs/a.dot", "graph { a }")));
    }
}
