//! `browser.screenshot`: captures a page as an image for the model and, if requested, as a file.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::approval::Granted;
use crate::base::call::{OutputBlock, Prepared, ToolOutput};
use crate::base::{Error, Result};
use crate::browser::capture::{CaptureRegion, ImageEncoding, ImageFormat, png_size};
use crate::config::Config;
use crate::tools::browser::{self, BrowserSpec, PageLease};
use crate::tools::file::write;
use crate::tools::limit_docs::{ItemCount, ToolLimit};
use crate::tools::{
    CallPlan, LazySchema, PermissionScope, PrepareCx, RunCx, Tool, ToolHints, ToolSpec, arguments,
};

const DEFAULT_MAX_WIDTH: u32 = 1280;
const DEFAULT_MAX_HEIGHT: u32 = 1568;
const DEFAULT_QUALITY: u32 = 75;

/// Arguments of `browser.screenshot`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// Write it here, workspace-relative, at full resolution (.png, .jpg, .webp).
    path: Option<String>,
    /// Handle of a page (p1). Default: the current page.
    page: Option<String>,
    /// All of the page, not only the window of 1280x720.
    full_page: Option<bool>,
    /// One element: a ref (e12), a CSS selector or text=words.
    target: Option<String>,
    /// Default: by the name of the file, else png for a file and jpeg inline.
    format: Option<ImageFormat>,
    /// 1 to 100, not for png. Default 75.
    quality: Option<u32>,
    /// Of the inline picture. Default 1280.
    max_width: Option<u32>,
    /// Of the inline picture. Default 1568.
    max_height: Option<u32>,
    /// Return the picture. Default true.
    inline: Option<bool>,
    /// Default 30000.
    timeout_ms: Option<u64>,
}

/// The text block of a result, as JSON.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct Reply {
    page: String,
    url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
    mime: &'static str,
    /// Of the file, or of the inline picture when there is none.
    bytes: u64,
    width: u32,
    height: u32,
    /// Of the inline picture to the page.
    scale: f64,
    /// The page is longer than a picture can be.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
}

/// The `browser.screenshot` tool.
pub struct BrowserScreenshot {
    spec: ToolSpec,
}

impl BrowserScreenshot {
    /// Creates the tool.
    pub fn new(config: &Config) -> Self {
        let browser_spec = BrowserSpec {
            name: "browser.screenshot",
            title: "Take a screenshot",
            description: "A picture of a page opened with browser.navigate: the window, the whole page or one element. \
                Returned scaled for you to see; with `path` written to the workspace as well.",
            scope: PermissionScope::Workspace,
            hints: ToolHints {
                read_only: false,
                destructive: true,
                idempotent: false,
                open_world: true,
            },
            writes_files: true,
            input_schema: LazySchema::new(arguments::input_schema::<Args>),
            output_schema: LazySchema::new(arguments::reply_schema::<Reply>),
            returns_image: true,
        };
        BrowserScreenshot { spec: browser::build_spec(config, browser_spec) }
    }

    async fn execute_call(&self, cx: &Arc<RunCx>, args: Args) -> Result<ToolOutput> {
        let lease = PageLease::existing_page(cx, args.page.as_deref()).await?;
        let limit = browser::page_timeout(args.timeout_ms);
        browser::run_within(cx, &lease, limit, take_screenshot(cx, &args, &lease)).await
    }
}

async fn take_screenshot(cx: &Arc<RunCx>, args: &Args, lease: &PageLease) -> Result<ToolOutput> {
    let page = &lease.page;
    let region =
        page.capture_region(args.full_page.unwrap_or(false), args.target.as_deref()).await?;
    let quality = args.quality.unwrap_or(DEFAULT_QUALITY);
    let inline = args.inline.unwrap_or(true);
    let scale = region.scale_to_fit(
        args.max_width.unwrap_or(DEFAULT_MAX_WIDTH),
        args.max_height.unwrap_or(DEFAULT_MAX_HEIGHT),
    );
    let named_format = args.path.as_deref().map(ImageFormat::from_file_name).transpose()?.flatten();
    let file_format = args.format.or(named_format).unwrap_or(ImageFormat::Png);
    let inline_format = args.format.unwrap_or(ImageFormat::Jpeg);
    let wants_file = args.path.is_some() || !inline;
    // One image serves as both if they would be the same.
    let shares_image = wants_file && inline && scale >= 1.0 && file_format == inline_format;
    let file = async {
        match wants_file {
            true => {
                let encoding = ImageEncoding { format: file_format, quality, is_fast: false };
                page.capture_image(region, 1.0, encoding).await.map(Some)
            }
            false => Ok(None),
        }
    };
    let inline_image = async {
        match inline && !shares_image {
            // A client waits for it and looks at it once.
            true => {
                let encoding = ImageEncoding { format: inline_format, quality, is_fast: true };
                page.capture_image(region, scale, encoding).await.map(Some)
            }
            false => Ok(None),
        }
    };
    let (file, mut inline_image) = futures::try_join!(file, inline_image)?;
    if shares_image {
        inline_image = file.clone();
    }
    let mut reply = describe_image(
        &region,
        scale,
        (file_format, file.as_deref()),
        (inline_format, inline_image.as_deref()),
    );
    reply.page = page.handle();
    reply.url = page.state().url.clone();
    if let (Some(path), Some(data)) = (&args.path, file) {
        let (path, cx) = (path.clone(), Arc::clone(cx));
        let work = tokio::task::spawn_blocking(move || {
            write::write_base64(&cx.settings.workspace, path, data, &cx.control.cancel)
        });
        let written = work.await.map_err(|error| {
            Error::internal("the write ended unexpectedly").with_source(error)
        })??;
        reply.path = Some(written.path);
        reply.etag = written.etag;
    }
    let text = serde_json::to_string(&reply).unwrap_or_default();
    let mut content = vec![OutputBlock::Text(text)];
    content.extend(
        inline_image
            .map(|data| OutputBlock::Image { data, mime: inline_format.mime_type().to_owned() }),
    );
    Ok(ToolOutput { content, ..ToolOutput::default() })
}

fn describe_image(
    region: &CaptureRegion,
    scale: f64,
    file: (ImageFormat, Option<&str>),
    inline_image: (ImageFormat, Option<&str>),
) -> Reply {
    let (main_image, image_scale) =
        if file.1.is_some() { (file, 1.0) } else { (inline_image, scale) };
    let bytes = main_image
        .1
        .map_or(0, |data| (data.len() as u64 / 4 * 3).saturating_sub(base64_padding(data)));
    let to_pixels = |length: f64| (length * image_scale).round().max(1.0) as u32;
    let png_dimensions =
        main_image.1.filter(|_| main_image.0 == ImageFormat::Png).and_then(png_size);
    let (width, height) =
        png_dimensions.unwrap_or((to_pixels(region.width), to_pixels(region.height)));
    let scale = (scale * 1000.0).round() / 1000.0;
    Reply {
        mime: main_image.0.mime_type(),
        bytes,
        width,
        height,
        scale,
        cut: region.truncated,
        ..Reply::default()
    }
}

fn base64_padding(data: &str) -> u64 {
    data.bytes().rev().take(2).filter(|byte| *byte == b'=').count() as u64
}

impl Tool for BrowserScreenshot {
    type Args = Args;

    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn limits(&self) -> Vec<ToolLimit> {
        vec![
            ToolLimit::for_time(browser::DEFAULT_TIMEOUT),
            ToolLimit {
                subject: "width shown",
                default_value: DEFAULT_MAX_WIDTH.to_string(),
                maximum: "any".to_owned(),
            },
            ToolLimit {
                subject: "height shown",
                default_value: DEFAULT_MAX_HEIGHT.to_string(),
                maximum: "any".to_owned(),
            },
            ToolLimit::from_fixed(
                "pixels of a side",
                ItemCount(crate::browser::capture::MAX_IMAGE_SIDE as u64),
            ),
        ]
    }

    fn parse(&self, arguments: &Map<String, Value>, _: &PrepareCx<'_>) -> Result<Args> {
        self.spec.parse_arguments(arguments)
    }

    fn prepare(&self, args: &Args, cx: &PrepareCx<'_>) -> Result<CallPlan> {
        if args.full_page == Some(true) && args.target.is_some() {
            return Err(Error::invalid_arguments("give `full_page` or `target`, not both"));
        }
        let check_range = |value: Option<u32>, name: &str, maximum: u32| match value {
            Some(number) if !(1..=maximum).contains(&number) => {
                Err(Error::invalid_arguments(format!("`{name}` must be 1 to {maximum}"))
                    .with_fact("argument", name))
            }
            _ => Ok(()),
        };
        check_range(args.quality, "quality", 100)?;
        check_range(args.max_width, "max_width", 4096)?;
        check_range(args.max_height, "max_height", 4096)?;
        if let Some(path) = &args.path {
            ImageFormat::from_file_name(path)?;
            // Fails before the page is rendered; the write resolves the path again.
            cx.workspace.find_write_target(path, false)?;
        } else if args.inline == Some(false) {
            return Err(Error::invalid_arguments(
                "with `inline` off and no `path` there is no picture to return",
            ));
        }
        browser::prepare_call(cx, args.timeout_ms)
    }

    async fn run(
        self: Arc<Self>,
        cx: Arc<RunCx>,
        args: Args,
        _call: Granted<Prepared>,
    ) -> Result<ToolOutput> {
        self.execute_call(&cx, args).await
    }
}
