//! Builds the shims of the libraries that are installed; the others become rows that say so.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=native");
    println!("cargo::rerun-if-env-changed=PEERS_WITHOUT");
    // For tests of what happens without a library: a list of names.
    let without = std::env::var("PEERS_WITHOUT").unwrap_or_default();
    let wanted = |name: &str| !without.split(',').any(|other| other == name);
    if wanted("rocksdb") && has("rocksdb/db.h") {
        cc::Build::new()
            .cpp(true)
            .std("c++17")
            .file("native/rocksdb.cc")
            // The system's library is built without run-time type information.
            .flag("-fno-rtti")
            .compile("peers_rocksdb");
        println!("cargo::rustc-link-lib=rocksdb");
        println!("cargo::rustc-cfg=have_rocksdb");
    }
    if wanted("berkeley") && has("db.h") {
        cc::Build::new().file("native/berkeley.c").compile("peers_berkeley");
        println!("cargo::rustc-link-lib=db");
        println!("cargo::rustc-cfg=have_berkeley");
    }
    if let Some(source) = faster_source()
        && wanted("faster")
        && ["libaio.h", "uuid/uuid.h", "tbb/concurrent_queue.h"].into_iter().all(has)
    {
        let parts = ["environment/file_linux.cc", "core/lss_allocator.cc", "core/address.cc"];
        let parts = parts.into_iter().chain(["core/thread.cc"]).map(|part| source.join(part));
        cc::Build::new()
            .cpp(true)
            .std("c++14")
            .include(&source)
            .file("native/faster.cc")
            .files(parts)
            .define("NDEBUG", None)
            .warnings(false)
            .compile("peers_faster");
        for library in ["aio", "uuid", "tbb", "stdc++fs"] {
            println!("cargo::rustc-link-lib={library}");
        }
        println!("cargo::rustc-cfg=have_faster");
    }
}

/// FASTER's source: where FASTER_SOURCE says (its folder `cc/src`), or where cargo has fetched the
/// crate that carries it.
fn faster_source() -> Option<PathBuf> {
    println!("cargo::rerun-if-env-changed=FASTER_SOURCE");
    if let Ok(source) = std::env::var("FASTER_SOURCE") {
        return Some(source.into());
    }
    let home = std::env::var("CARGO_HOME").map(PathBuf::from).ok();
    let home = home.or_else(|| Some(PathBuf::from(std::env::var("HOME").ok()?).join(".cargo")))?;
    let registries = std::fs::read_dir(home.join("registry/src")).ok()?.flatten();
    let source =
        |registry: std::fs::DirEntry| registry.path().join("libfaster-sys-0.11.0/FASTER/cc/src");
    registries.map(source).find(|source| source.is_dir())
}

/// Whether a header is where compilers look.
fn has(header: &str) -> bool {
    let more = std::env::var("CPATH").unwrap_or_default();
    let paths = more.split(':').map(PathBuf::from);
    let usual = ["/usr/include", "/usr/local/include"].map(PathBuf::from);
    paths.chain(usual).any(|path| Path::new(&path).join(header).is_file())
}
