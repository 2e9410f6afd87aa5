fn main() {
    println!("cargo::rustc-cfg=leasehold_model");
    println!("cargo::rerun-if-changed=build.rs");
}
