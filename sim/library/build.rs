fn main() {
    println!("cargo::rustc-cfg=leasehold_sim");
    println!("cargo::rerun-if-changed=build.rs");
}
