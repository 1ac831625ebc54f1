//! `forebay tune replay`.

/// Which article.
#[derive(clap::Args, Clone, Debug)]
pub struct ReplayArgs {
    /// Name, or all
    pub article: String,
}

/// Runs it.
///
/// # Errors
/// There is no such article.
pub fn main(args: &ReplayArgs) -> Result<(), String> {
    Err(format!("there is no article \"{}\"", args.article))
}
