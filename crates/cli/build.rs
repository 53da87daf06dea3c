//! Gives `kiln.exe` its manifest. Windows reads there that the program takes paths of more than 260 characters and that
//! its texts are UTF-8, so that `kiln` and the libraries that it loads agree about names with umlauts.

use embed_manifest::manifest::{ActiveCodePage, Setting};
use embed_manifest::{embed_manifest, new_manifest};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_CFG_WINDOWS").is_none() {
        return;
    }
    let manifest = new_manifest("Kiln").active_code_page(ActiveCodePage::Utf8).long_path_aware(Setting::Enabled);
    embed_manifest(manifest).expect("the manifest is written into cargo's folder");
}
