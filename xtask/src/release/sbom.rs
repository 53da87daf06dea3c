//! The bill of materials of the program, in CycloneDX's format.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::Result;
use crate::packages::Package;
use crate::release::linked::{Id, Linked, PROGRAM};
use crate::workspace::{read, root};

/// The bill. It has no time and no serial number, so that the same sources give the same bytes.
///
/// # Errors
/// If `Cargo.lock` cannot be read.
pub fn text(linked: &Linked, target: &str) -> Result<String> {
    let sums = sums(&read(&root().join("Cargo.lock"))?);
    let is_program = |id: &Id| id.0 == PROGRAM;
    let program = linked.packages.iter().find(|(id, _)| is_program(id));
    let (_, program) = program.ok_or_else(|| format!("{PROGRAM} is not among its own packages"))?;
    let mut main = component(program, None);
    main["type"] = json!("application");
    main["name"] = json!("kiln");
    main["properties"] = json!([{ "name": "target", "value": target }]);
    let others = linked.packages.iter().filter(|(id, _)| !is_program(id));
    let components: Vec<Value> = others.map(|(id, package)| component(package, sums.get(id))).collect();
    let dependencies: Vec<Value> = linked
        .edges
        .iter()
        .map(
            |(id, needs)| json!({ "ref": reference(id), "dependsOn": needs.iter().map(reference).collect::<Vec<_>>() }),
        )
        .collect();
    let bill = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": main },
        "components": components,
        "dependencies": dependencies,
    });
    Ok(format!("{bill:#}\n"))
}

fn component(package: &Package, sum: Option<&String>) -> Value {
    let id = (package.name.clone(), package.version.clone());
    let mut component =
        json!({ "type": "library", "name": package.name, "version": package.version, "bom-ref": reference(&id) });
    if let Some(license) = &package.license {
        component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
    }
    if let Some(description) = &package.description {
        component["description"] = json!(description.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    // Kiln's own crates are in no registry.
    if package.source.is_some() {
        component["purl"] = json!(reference(&id));
        if let Some(address) = package.repository.as_ref().filter(|address| address.starts_with("https://")) {
            component["externalReferences"] = json!([{ "type": "vcs", "url": address.trim() }]);
        }
    }
    if let Some(sum) = sum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
    }
    component
}

fn reference((name, version): &Id) -> String {
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

/// The sums of packages in `Cargo.lock`.
fn sums(lock: &str) -> BTreeMap<Id, String> {
    let package = |block: &str| {
        let value = |key: &str| {
            let line = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""))?;
            Some(line.strip_suffix('"')?.to_string())
        };
        Some(((value("name")?, value("version")?), value("checksum")?))
    };
    lock.split("[[package]]").filter_map(package).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_have_references_and_sums() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0+b\"\nchecksum = \"0f\"\n\n[[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
        let id = ("a".to_string(), "1.0.0+b".to_string());
        let sums = sums(lock);
        assert_eq!(sums, BTreeMap::from([(id.clone(), "0f".to_string())]));
        let package = Package {
            name: id.0.clone(),
            version: id.1.clone(),
            license: Some("MIT/Apache-2.0".into()),
            source: Some("registry".into()),
            ..Package::default()
        };
        let component = component(&package, sums.get(&id));
        assert_eq!(component["purl"], "pkg:cargo/a@1.0.0%2Bb");
        assert_eq!(component["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(component["hashes"][0]["content"], "0f");
    }
}
