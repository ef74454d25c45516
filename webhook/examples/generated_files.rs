//! Writes the files that are derived from the one definition of *managed*; run by `cargo xtask generate`.
//! That they are fresh is a unit test of the library.

fn main() -> anyhow::Result<()> {
    for (path, content) in muster_webhook::generated::generated_files()? {
        std::fs::write(path, content)?;
    }
    Ok(())
}
