//! agent
use crate::Error;
#[derive(clap::Args)]
pub struct AgentArgs {}
pub fn main(_: &AgentArgs) -> Result<u8, Error> { Ok(1) }
pub fn lead(_: &[String], _: Option<&std::path::Path>, _: &crate::options::LoadArgs, _: &[String]) -> Result<crate::run::Report, Error> { Err(Error::Usage("x".into())) }
