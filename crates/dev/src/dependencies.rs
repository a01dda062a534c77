//! The dependency rule: which crate of this workspace may use which.
//!
//! Arrows point downward only. The table below is the whole rule; the test compares it with `cargo metadata`.
//! External crates are fixed for the pure crates and free elsewhere, apart from a few bans.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// One row of the table.
struct Rule {
    /// Crate without the `paceline-` prefix.
    name: &'static str,
    /// Crates of this workspace it may depend on.
    workspace: &'static [&'static str],
    /// External crates it may depend on.
    external: External,
}

/// The external dependencies a crate may have.
enum External {
    /// These and no others.
    Only(&'static [&'static str]),
    /// Any that no rule below forbids.
    Any,
}

use External::{Any, Only};

/// `testing` is the scripted worker: any crate above `proto` may use it in its tests.
const TABLE: &[Rule] = &[
    Rule { name: "plan", workspace: &[], external: Only(&["serde", "rmp-serde", "thiserror"]) },
    Rule { name: "scheduler", workspace: &["plan"], external: Only(&["thiserror", "siphasher"]) },
    Rule { name: "fleet", workspace: &["scheduler", "plan"], external: Only(&["thiserror"]) },
    Rule { name: "simulator", workspace: &["fleet", "scheduler", "plan"], external: Any },
    Rule { name: "sampling", workspace: &[], external: Only(&["serde", "rmp-serde", "thiserror"]) },
    Rule { name: "kernels", workspace: &["tiles"], external: Only(&["micropool", "pulp", "thiserror"]) },
    Rule { name: "tiles", workspace: &[], external: Only(&["libc"]) },
    Rule { name: "launch", workspace: &[], external: Only(&[]) },
    Rule { name: "proto", workspace: &["plan"], external: Any },
    Rule { name: "text", workspace: &[], external: Any },
    Rule { name: "grammar", workspace: &[], external: Any },
    Rule { name: "engine", workspace: &["fleet", "scheduler", "plan", "proto", "sampling", "grammar"], external: Any },
    Rule { name: "server", workspace: &["text", "engine", "sampling", "grammar", "proto"], external: Any },
    Rule { name: "client", workspace: &["proto"], external: Any },
    Rule {
        name: "daemon",
        workspace: &[
            "plan",
            "scheduler",
            "fleet",
            "simulator",
            "sampling",
            "proto",
            "text",
            "grammar",
            "engine",
            "server",
            "client",
        ],
        external: Any,
    },
    Rule { name: "bindings", workspace: &["daemon", "plan", "sampling", "kernels", "launch", "proto"], external: Any },
    Rule { name: "testing", workspace: &["proto", "plan", "sampling"], external: Any },
    Rule { name: "dev", workspace: &[], external: Any },
];

/// What tests of a crate with a fixed list of external crates may use besides.
const PURE_TESTS: &[&str] = &["allocation-counter", "proptest", "serde_json"];

/// An external crate and the only crates of ours that may use it, with the reason.
const RESERVED: &[(&str, &[&str], &str)] = &[
    ("pyo3", &["bindings"], "the native daemon links no Python"),
    ("numpy", &["bindings"], "the native daemon links no Python"),
    ("anyhow", &["daemon", "dev"], "libraries have typed errors"),
    ("axum", &["server", "client"], "HTTP is served by one crate, and by the tests of its clients"),
    ("protox", &["dev"], "generated code is committed"),
    ("tonic-prost-build", &["dev"], "generated code is committed"),
];

/// What `cargo metadata` says, as far as it matters here. The crate of that name would switch on features of
/// `serde_json` for the whole workspace, and heavy crates would be built a second time for the tests.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `dev`, `build`, or none for a normal dependency.
    kind: Option<String>,
}

/// A declared dependency, as the rule sees it.
struct Edge<'a> {
    from: &'a str,
    to: &'a str,
    in_workspace: bool,
    development: bool,
}

/// Every dependency of the workspace that the table forbids, one line each.
///
/// # Errors
/// When `cargo metadata` fails.
pub fn violations(root: &Path) -> Result<Vec<String>> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version=1", "--no-deps", "--locked", "--offline"])
        .current_dir(root)
        .output()
        .context("running cargo metadata")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata failed: {errors}");
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("reading cargo metadata")?;
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let Some(from) = package.name.strip_prefix("paceline-") else {
            findings.push(format!("{}: the name lacks the prefix paceline-", package.name));
            continue;
        };
        let Some(rule) = TABLE.iter().find(|rule| rule.name == from) else {
            findings.push(format!("paceline-{from}: not in the dependency table"));
            continue;
        };
        for dependency in &package.dependencies {
            let own = dependency.name.strip_prefix("paceline-");
            let edge = Edge {
                from,
                to: own.unwrap_or(&dependency.name),
                in_workspace: own.is_some(),
                development: dependency.kind.as_deref() == Some("dev"),
            };
            if dependency.kind.as_deref() == Some("build") {
                findings.push(format!("paceline-{from}: build dependency on {}", dependency.name));
            } else if let Some(reason) = forbidden(rule, &edge) {
                let kind = if edge.development { "tests may not use" } else { "may not depend on" };
                findings.push(format!("paceline-{from} {kind} {}: {reason}", dependency.name));
            }
        }
    }
    Ok(findings)
}

/// Why the edge is forbidden, if it is.
fn forbidden(rule: &Rule, edge: &Edge<'_>) -> Option<String> {
    if edge.in_workspace {
        let scripted_worker = edge.to == "testing" && edge.development && rule.workspace.contains(&"proto");
        let allowed = rule.workspace.contains(&edge.to) || scripted_worker;
        return (!allowed).then(|| format!("its row allows {}", rule.workspace.join(", ")));
    }
    let reserved = RESERVED.iter().find(|(name, users, _)| *name == edge.to && !users.contains(&edge.from));
    if let Some((_, _, reason)) = reserved {
        return Some((*reason).to_owned());
    }
    let Only(allowed) = rule.external else {
        return None;
    };
    let permitted = allowed.contains(&edge.to) || (edge.development && PURE_TESTS.contains(&edge.to));
    (!permitted).then(|| format!("a pure crate has only {}", allowed.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::{Edge, TABLE, forbidden};

    fn reason(from: &str, to: &str, in_workspace: bool, development: bool) -> Option<String> {
        let rule = TABLE.iter().find(|rule| rule.name == from).expect("a crate of the table");
        forbidden(rule, &Edge { from, to, in_workspace, development })
    }

    #[test]
    fn the_table_has_no_cycle() {
        let mut placed: Vec<&str> = Vec::new();
        while placed.len() < TABLE.len() {
            let next = TABLE
                .iter()
                .find(|rule| !placed.contains(&rule.name) && rule.workspace.iter().all(|below| placed.contains(below)));
            placed.push(next.expect("each crate stands above all that it uses").name);
        }
    }

    #[test]
    fn forbidden_edges_are_named() {
        assert!(reason("scheduler", "engine", true, false).is_some());
        assert!(reason("scheduler", "tokio", false, false).is_some());
        assert!(reason("scheduler", "testing", true, true).is_some());
        assert!(reason("daemon", "pyo3", false, false).is_some());
        assert!(reason("server", "testing", true, false).is_some());
        assert!(reason("server", "anyhow", false, true).is_some());
    }

    #[test]
    fn allowed_edges_pass() {
        assert_eq!(reason("scheduler", "plan", true, false), None);
        assert_eq!(reason("scheduler", "proptest", false, true), None);
        assert_eq!(reason("server", "testing", true, true), None);
        assert_eq!(reason("engine", "tokio", false, false), None);
    }
}
