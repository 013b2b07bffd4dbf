//! `watchkeeper mongodb setup`: what a stream asks for and a collection does not have yet.

use async_trait::async_trait;
use mongodb::bson::doc;
use serde_json::json;
use watchkeeper_core::{Argument, Cx, Error, Options, Report, Result, Takes, Tool};

use super::URL;
use crate::client::Client;
use crate::config::Config;

const ARGUMENTS: &[Argument] = &[
    URL,
    Argument { name: "collection", takes: Takes::Many, help: "A collection to set up; may be repeated" },
    Argument {
        name: "images",
        takes: Takes::Nothing,
        help: "Let it store its documents before and after every change, which costs space",
    },
];

/// Changes settings of collections. Nothing else of Watchkeeper does so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup;

#[async_trait]
impl Tool for Setup {
    fn name(&self) -> &'static str {
        "setup"
    }

    fn about(&self) -> &'static str {
        "Change settings of collections as a stream needs them: stored images"
    }

    fn arguments(&self) -> &'static [Argument] {
        ARGUMENTS
    }

    async fn run(&self, cx: &Cx, arguments: &mut Options) -> Result<Report> {
        let config = Config::from_options(arguments)?;
        let collections = arguments.texts("collection")?.ok_or_else(|| arguments.missing("collection", "orders"))?;
        if !arguments.flag("images")?.unwrap_or(false) {
            return Err(Error::config("it was not said what to set up").remedy("write --images for stored images"));
        }
        let client = Client::open(cx, config).await?;
        for collection in &collections {
            let images = doc! { "enabled": true };
            client.write(cx, doc! { "collMod": collection, "changeStreamPreAndPostImages": images }).await?;
        }
        let line = |collection: &String| format!("{collection}: images are stored from the next change on");
        Ok(Report { lines: collections.iter().map(line).collect(), data: json!({ "images": collections }) })
    }
}
