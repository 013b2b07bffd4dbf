//! `watchkeeper mongodb setup`: what a stream asks for and a collection does not have yet.

use async_trait::async_trait;
use mongodb::bson::doc;
use mongodb::options::ChangeStreamPreAndPostImages;
use serde_json::json;
use watchkeeper_core::{Argument, Cx, Error, Options, Report, Result, Takes, Tool};

use super::URL;
use crate::client::Client;
use crate::config::Config;
use crate::error::{CallPurpose, code};

const ARGUMENTS: &[Argument] = &[
    URL,
    Argument { name: "collection", takes: Takes::Many, help: "A collection to set up; may be repeated" },
    Argument {
        name: "images",
        takes: Takes::Nothing,
        help: "Let it store its documents before and after every change, which costs space",
    },
    Argument {
        name: "create",
        takes: Takes::Nothing,
        help: "Create a collection that is missing, with stored images from its first change on",
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
        let may_create = arguments.flag("create")?.unwrap_or(false);
        let client = Client::open(cx, config).await?;
        let (mut lines, mut created) = (Vec::new(), Vec::new());
        for collection in &collections {
            let is_new = may_create && create(cx, &client, collection).await?;
            if is_new {
                created.push(collection);
                lines.push(format!("{collection}: created; images are stored from its first change on"));
            } else {
                client
                    .write(cx, doc! { "collMod": collection, "changeStreamPreAndPostImages": { "enabled": true } })
                    .await?;
                lines.push(format!("{collection}: images are stored from the next change on"));
            }
        }
        Ok(Report { lines, data: json!({ "images": collections, "created": created }) })
    }
}

/// Creates a collection with stored images; false when there is one already.
async fn create(cx: &Cx, client: &Client, collection: &str) -> Result<bool> {
    let database = client.database(cx).await?;
    let images = ChangeStreamPreAndPostImages::builder().enabled(true).build();
    let call = async {
        let created = database.create_collection(collection).change_stream_pre_and_post_images(images).await;
        match created {
            Ok(()) => Ok(true),
            Err(native) if code(&native) == Some(NAMESPACE_EXISTS) => Ok(false),
            Err(native) => Err(client.error(native, CallPurpose::Writing)),
        }
    };
    cx.run(call).await
}

/// The server's code for a collection that exists already.
const NAMESPACE_EXISTS: i32 = 48;
