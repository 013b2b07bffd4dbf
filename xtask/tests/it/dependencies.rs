//! The dependency rule: who may depend on whom inside the workspace.
//!
//! A backend that reached for the engine, or a program that carried a mutant, would compile; so the
//! rule is read from `cargo metadata`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

/// What a crate is, by its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Core,
    Engine,
    Testkit,
    Backend,
    /// The facade and the program: what users get.
    Shipped,
    /// Processes and verdicts, of use to programs and developers alike.
    Drill,
    Sim,
    /// The developers' own program of real processes.
    Chaos,
    Bench,
    Developer,
}

impl Role {
    fn of(manifest: &str) -> Self {
        let folder = Path::new(manifest).parent().expect("a manifest lies in a folder");
        let within_crates = folder.parent().is_some_and(|above| above.ends_with("crates"));
        match folder.file_name().and_then(|name| name.to_str()) {
            _ if !within_crates => Self::Developer,
            Some("core") => Self::Core,
            Some("engine") => Self::Engine,
            Some("testkit") => Self::Testkit,
            Some("watchkeeper" | "cli") => Self::Shipped,
            Some("drill") => Self::Drill,
            Some("sim") => Self::Sim,
            Some("chaos") => Self::Chaos,
            Some("bench") => Self::Bench,
            _ => Self::Backend,
        }
    }

    /// Whether a crate of this role may depend on one of role `on`.
    fn may_use(self, on: Self, in_tests_only: bool) -> bool {
        match self {
            Self::Core => false,
            Self::Testkit => on == Self::Core,
            // It is shipped inside the program, so it takes nothing from the testkit, not even its judge.
            Self::Drill => on == Self::Core,
            Self::Engine | Self::Backend => on == Self::Core || (in_tests_only && on == Self::Testkit),
            Self::Shipped => match on {
                Self::Testkit => in_tests_only,
                Self::Sim | Self::Chaos | Self::Bench | Self::Developer => false,
                _ => true,
            },
            Self::Sim | Self::Chaos | Self::Bench | Self::Developer => true,
        }
    }
}

/// Everything in `metadata` that breaks the rule, one line each.
fn violations(metadata: &Value) -> Vec<String> {
    let packages: Vec<&Value> = list(&metadata["packages"]).iter().collect();
    let roles: BTreeMap<&str, Role> =
        packages.iter().map(|package| (text(&package["name"]), Role::of(text(&package["manifest_path"])))).collect();
    let mut found = Vec::new();
    for package in &packages {
        found.extend(forbidden_dependencies(package, &roles));
        found.extend(enabled_mutants(package, &roles));
    }
    let by_default = list(&metadata["workspace_default_members"]);
    let is_outside = |role| matches!(role, Role::Sim | Role::Chaos | Role::Bench);
    let outside = packages.iter().filter(|package| is_outside(roles[text(&package["name"])]));
    for package in outside.filter(|package| by_default.contains(&package["id"])) {
        found.push(format!("{} is a default member", text(&package["name"])));
    }
    found
}

fn forbidden_dependencies(package: &Value, roles: &BTreeMap<&str, Role>) -> Vec<String> {
    let name = text(&package["name"]);
    let inside = list(&package["dependencies"]).iter().filter(|on| roles.contains_key(text(&on["name"])));
    let forbidden = inside.filter(|on| !roles[name].may_use(roles[text(&on["name"])], on["kind"] == "dev"));
    forbidden
        .map(|on| format!("{name} depends on {} ({})", text(&on["name"]), on["kind"].as_str().unwrap_or("normal")))
        .collect()
}

/// The mutants must be reachable from the simulation and from chaos only: neither a dependency nor a feature of any
/// other crate may turn them on.
fn enabled_mutants(package: &Value, roles: &BTreeMap<&str, Role>) -> Vec<String> {
    let name = text(&package["name"]);
    if matches!(roles[name], Role::Sim | Role::Chaos) {
        return Vec::new();
    }
    let is_engine = |on: &Value| roles.get(text(&on["name"])) == Some(&Role::Engine);
    let engines: Vec<&Value> = list(&package["dependencies"]).iter().filter(|on| is_engine(on)).collect();
    let mut found = Vec::new();
    if engines.iter().any(|on| list(&on["features"]).iter().any(|feature| feature == "mutants")) {
        found.push(format!("{name} enables the engine's mutants"));
    }
    let local_names = engines.iter().map(|on| on["rename"].as_str().unwrap_or_else(|| text(&on["name"])));
    let mut switches: Vec<String> =
        local_names.flat_map(|engine| [format!("{engine}/mutants"), format!("{engine}?/mutants")]).collect();
    if roles[name] == Role::Engine {
        switches.push("mutants".to_owned());
    }
    for (feature, enables) in package["features"].as_object().into_iter().flatten() {
        if list(enables).iter().any(|enabled| switches.iter().any(|switch| enabled == switch)) {
            found.push(format!("feature {feature} of {name} enables the engine's mutants"));
        }
    }
    found
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().expect("cargo metadata has a text here")
}

fn real_metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(crate::root());
    let output = command.output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

#[test]
fn the_workspace_keeps_the_rule() {
    let metadata = real_metadata();
    let names: Vec<&str> = list(&metadata["packages"]).iter().map(|package| text(&package["name"])).collect();
    for expected in ["watchkeeper-core", "watchkeeper-engine", "watchkeeper-testkit", "watchkeeper", "watchkeeper-sim"]
    {
        assert!(names.contains(&expected), "{expected} was not looked at, only {names:?}");
    }
    assert!(!list(&metadata["workspace_default_members"]).is_empty(), "cargo did not tell the default members");
    assert_eq!(violations(&metadata), Vec::<String>::new());
}

/// A made-up package in `crates/<folder>`, with dependencies as (name, kind, features).
fn package(folder: &str, dependencies: &[(&str, Option<&str>, &[&str])]) -> Value {
    let dependencies: Vec<Value> = dependencies
        .iter()
        .map(|(name, kind, features)| json!({ "name": name, "kind": kind, "features": features, "rename": null }))
        .collect();
    let name = if folder == "watchkeeper" { folder.to_owned() } else { format!("watchkeeper-{folder}") };
    json!({
        "name": name,
        "id": folder,
        "manifest_path": format!("/somewhere/crates/{folder}/Cargo.toml"),
        "dependencies": dependencies,
        "features": {},
    })
}

/// The workspace that keeps the rule, with `changed` in the place of the package of the same name.
fn with(changed: Value) -> Value {
    let (core, engine, testkit) = ("watchkeeper-core", "watchkeeper-engine", "watchkeeper-testkit");
    let dev = Some("dev");
    let mut packages = vec![
        package("core", &[("serde", None, &["derive"])]),
        package("engine", &[(core, None, &[]), (testkit, dev, &[])]),
        package("testkit", &[(core, None, &[])]),
        package("redis", &[(core, None, &[]), (testkit, dev, &[])]),
        package("mongodb", &[(core, None, &[]), (testkit, dev, &[])]),
        package("watchkeeper", &[(core, None, &[]), (engine, None, &["metrics"]), ("watchkeeper-redis", None, &[])]),
        package("sim", &[(engine, None, &["mutants"]), (testkit, None, &[])]),
        package("bench", &[(engine, None, &[])]),
        package("drill", &[(core, None, &[])]),
        package("chaos", &[(engine, None, &["mutants"]), ("watchkeeper-drill", None, &[])]),
    ];
    packages.retain(|package| package["name"] != changed["name"]);
    packages.push(changed);
    json!({ "packages": packages, "workspace_default_members": ["watchkeeper"] })
}

#[test]
fn the_made_up_workspace_keeps_the_rule() {
    assert_eq!(violations(&with(package("bench", &[]))), Vec::<String>::new());
}

#[test]
fn a_forbidden_dependency_is_found_whoever_has_it() {
    let cases: [(&str, &str, Option<&str>); 16] = [
        ("core", "watchkeeper-testkit", Some("dev")),
        ("engine", "watchkeeper-redis", None),
        ("engine", "watchkeeper-testkit", None),
        ("testkit", "watchkeeper-engine", Some("dev")),
        ("redis", "watchkeeper-engine", Some("dev")),
        ("redis", "watchkeeper-mongodb", None),
        ("redis", "watchkeeper-testkit", Some("build")),
        ("redis", "watchkeeper", Some("dev")),
        ("watchkeeper", "watchkeeper-testkit", None),
        ("watchkeeper", "watchkeeper-sim", Some("dev")),
        ("watchkeeper", "watchkeeper-bench", None),
        ("cli", "watchkeeper-testkit", None),
        ("cli", "watchkeeper-chaos", None),
        ("redis", "watchkeeper-drill", None),
        ("drill", "watchkeeper-engine", None),
        ("drill", "watchkeeper-testkit", Some("dev")),
    ];
    for (folder, on, kind) in cases {
        let changed = package(folder, &[(on, kind, &[])]);
        let expected = format!("{} depends on {on} ({})", text(&changed["name"]), kind.unwrap_or("normal"));
        assert_eq!(violations(&with(changed)), [expected]);
    }
}

#[test]
fn mutants_are_found_wherever_they_are_enabled() {
    let engine = "watchkeeper-engine";
    let by_dependency = package("bench", &[(engine, None, &["mutants"])]);
    assert_eq!(violations(&with(by_dependency)), ["watchkeeper-bench enables the engine's mutants"]);

    for switch in ["watchkeeper-engine/mutants", "watchkeeper-engine?/mutants"] {
        let mut by_feature = package("watchkeeper", &[(engine, None, &[])]);
        by_feature["features"] = json!({ "chaos": [switch] });
        let expected = ["feature chaos of watchkeeper enables the engine's mutants"];
        assert_eq!(violations(&with(by_feature)), expected);
    }

    let mut renamed = package("watchkeeper", &[(engine, None, &[])]);
    renamed["dependencies"][0]["rename"] = json!("heart");
    renamed["features"] = json!({ "chaos": ["heart/mutants"] });
    assert_eq!(violations(&with(renamed)), ["feature chaos of watchkeeper enables the engine's mutants"]);

    let mut by_default = package("engine", &[]);
    by_default["features"] = json!({ "mutants": [], "default": ["mutants"] });
    assert_eq!(violations(&with(by_default)), ["feature default of watchkeeper-engine enables the engine's mutants"]);
}

#[test]
fn a_default_member_that_is_not_for_users_is_found() {
    for folder in ["sim", "chaos", "bench"] {
        let mut metadata = with(package(folder, &[]));
        metadata["workspace_default_members"] = json!(["watchkeeper", folder]);
        assert_eq!(violations(&metadata), [format!("watchkeeper-{folder} is a default member")]);
    }
}
