//! Template `conv_epilogue`: 2-d convolution as an implicit matrix product.
//!
//! `pixels`: output channels are tile rows (weights packed [channel block][tap][rows]), a block of pixels is the panel, gathered into
//! scratch once per block and reused by every channel. `channels`: pixels are tile rows (gathered per block), packed weights are
//! the panels; better where few pixels meet many channels.

use forge_ir::{DType, Dim, Graph, NodeId, Op, Value, Window};

use super::epilogue::Epilogue;
use super::{Axis, Parameters, Spec, anchor, candidate, region_parameters, region_slots};
use crate::candidate::{Candidate, Launch, LaunchPlan, Slot};
use crate::codegen::Unsupported;
use crate::codegen::cpp::{self, Parameter};
use crate::codegen::emit::{Index, indent};

/// Up to this many pixels an image, pixels are tried as rows first.
const FEW_PIXELS: i64 = 200;
/// Blocks of pixels an image, at least, when pixels are rows.
const BLOCKS: i64 = 4;

/// Where the bias of a channel comes from.
enum Bias {
    None,
    /// A region input.
    Input(usize),
    /// Literals of the region.
    Table(Vec<String>),
}

struct Convolution {
    region: Graph,
    node: NodeId,
    x: usize,
    w: usize,
    bias: Bias,
    window: Window,
    epilogue: Epilogue,
}

fn convolution(spec: &Spec<'_>) -> Result<Convolution, Unsupported> {
    let region = spec.region.decompose_all().map_err(|e| Unsupported::new(e.to_string()))?;
    let node = anchor(&region, "convolution", |op| matches!(op, Op::Conv { .. }))?;
    let Op::Conv { window, groups: 1 } = region.op(node).clone() else {
        return Err(Unsupported::new("a grouped convolution"));
    };
    let operands = region.operands(node);
    let position = |value: Value| {
        region
            .inputs()
            .iter()
            .position(|i| *i == value.node)
            .ok_or_else(|| Unsupported::new("an operand of the convolution is computed inside the region"))
    };
    let (x, w) = (position(operands[0])?, position(operands[1])?);
    let bias = match operands.get(2) {
        None => Bias::None,
        Some(value) => match region.op(value.node) {
            Op::Constant { value } => {
                Bias::Table(value.to_f64().iter().map(|v| cpp::float_literal(DType::F32, *v)).collect())
            }
            _ => Bias::Input(position(*value)?),
        },
    };
    let ty = region.ty(operands[0]);
    if ty.rank() != 4 || ty.dtype != DType::F32 {
        return Err(Unsupported::new(format!("a convolution over {ty}")));
    }
    if !spec.weight_inputs.get(w).copied().unwrap_or(false) {
        return Err(Unsupported::new("the filter is not a weight"));
    }
    let epilogue = Epilogue::cut(&region, node)?
        .merged(&[vec![0], vec![1], vec![2, 3]])
        .ok_or_else(|| Unsupported::new("an epilogue operand that varies along one spatial axis only"))?;
    Ok(Convolution { node, x, w, bias, window, epilogue, region })
}

pub(super) fn space(spec: &Spec<'_>) -> Result<Vec<Axis>, Unsupported> {
    let c = convolution(spec)?;
    let mut tiles = ["8x32", "6x64", "8x48", "12x32", "8x16", "7x64", "6x16"];
    let mut rows_are = vec!["channels".to_owned(), "pixels".to_owned()];
    // Few pixels fill no panel of them: they are better as rows, and 7 divides the sizes that networks end in.
    let pixels = Dim::product(&c.region.node(c.node).outputs[0].shape[2..]);
    if pixels.as_const().is_some_and(|p| p <= FEW_PIXELS) {
        rows_are.reverse();
        tiles.swap(0, 5);
    }
    Ok(vec![
        Axis { name: "rows_are", values: rows_are },
        Axis { name: "tile", values: tiles.map(str::to_owned).to_vec() },
    ])
}

pub(super) fn instantiate(spec: &Spec<'_>, parameters: &Parameters) -> Result<Candidate, Unsupported> {
    let c = convolution(spec)?;
    let (rows, width) = parameters
        .get("tile")
        .and_then(|t| t.split_once('x'))
        .and_then(|(r, v)| Some((r.parse::<i64>().ok()?, v.parse::<i64>().ok()?)))
        .ok_or_else(|| Unsupported::new("parameter 'tile' is not ROWSxCOLUMNS"))?;
    let rows_are_channels = match parameters.get("rows_are").map(String::as_str) {
        Some("channels") => true,
        Some("pixels") => false,
        other => return Err(Unsupported::new(format!("parameter 'rows_are' is {other:?}"))),
    };
    let operands = c.region.operands(c.node);
    let (x, w) = (c.region.ty(operands[0]).clone(), c.region.ty(operands[1]).clone());
    let out = c.region.node(c.node).outputs[0].clone();
    let geometry = Geometry {
        channels: x.shape[1].clone(),
        filters: out.shape[1].clone(),
        h: x.shape[2].clone(),
        w: x.shape[3].clone(),
        kh: w.shape[2].clone(),
        kw: w.shape[3].clone(),
        ow: out.shape[3].clone(),
        pixels: out.shape[2].clone() * out.shape[3].clone(),
        window: c.window.clone(),
        input: c.x,
    };
    let taps = Dim::product(&w.shape[1..]);
    // Block size along pixels and along channels.
    let (pixel_block, channel_block) = if rows_are_channels {
        (width, rows)
    } else {
        // Whole tiles, and enough blocks to share out.
        let tiles = geometry.pixels.as_const().map_or(8, |p| p / (rows * BLOCKS)).clamp(1, 8);
        (rows * tiles, width)
    };
    let pixel_blocks = geometry.pixels.ceil_div(&Dim::from(pixel_block));
    let channel_blocks = geometry.filters.ceil_div(&Dim::from(channel_block));
    let images = x.shape[0].clone();
    let (bias_table, bias) = match &c.bias {
        Bias::None => (String::new(), "0.0f".to_owned()),
        Bias::Input(input) => (String::new(), format!("in{input}[CHANNEL]")),
        Bias::Table(values) => {
            (format!("  static const float bias_of[] = {{{}}};\n", values.join(", ")), "bias_of[CHANNEL]".to_owned())
        }
    };
    let image = || Index::new("image", 0);
    let (tile_code, task_split, grid) = if rows_are_channels {
        let lines = c.epilogue.row_code(&[image(), Index::new("channel", 0)], "p0", "count", "acc")?;
        let code = format!(
            "    for (int64_t block = 0; block < {blocks}; ++block) {{
      forge::product_tile<{rows}, {width}>(packed + block * {rows} * {taps}, 1, {rows}, {taps}, patches, tile);
      for (int64_t row = 0; row < {rows}; ++row) {{
        const int64_t channel = block * {rows} + row;
        if (channel >= {filters}) break;
        float* acc = tile + row * {width};
        const float bias = {bias};
        for (int64_t j = 0; j < {width}; ++j) acc[j] += bias;
{epilogue}      }}
    }}
",
            blocks = cpp::dim(&channel_blocks),
            taps = cpp::dim(&taps),
            filters = cpp::dim(&geometry.filters),
            bias = bias.replace("CHANNEL", "channel"),
            epilogue = indent(&lines, 8),
        );
        (code, geometry.gather_panel(width), images.clone() * pixel_blocks.clone())
    } else {
        let lines = c.epilogue.row_code(&[image(), Index::new("(c0 + lane)", 0)], "p", "height", "column")?;
        // The tile is turned, so that each channel's pixels are written in order.
        let code = format!(
            "    for (int64_t block = 0; block < {blocks}; ++block) {{
      const int64_t c0 = block * {width}, lanes = min({width}, {filters} - c0);
      for (int64_t first = 0; first < count; first += {rows}) {{
        const int64_t height = min({rows}, count - first), p = p0 + first;
        forge::product_tail<{rows}, {width}>(height, patches + first * {taps}, {taps}, 1, {taps}, packed + c0 * {taps}, tile);
        for (int64_t lane = 0; lane < lanes; ++lane) {{
          float column[{rows}];
          const float bias = {bias};
          for (int64_t row = 0; row < height; ++row) column[row] = tile[row * {width} + lane] + bias;
{epilogue}        }}
      }}
    }}
",
            blocks = cpp::dim(&channel_blocks),
            taps = cpp::dim(&taps),
            filters = cpp::dim(&geometry.filters),
            bias = bias.replace("CHANNEL", "c0 + lane"),
            epilogue = indent(&lines, 10),
        );
        (code, geometry.gather_rows(), images.clone() * pixel_blocks.clone())
    };
    let body = format!(
        "{bias_table}  alignas(64) float tile[{rows} * {width}];
  float* patches = static_cast<float*>(scratch);
  for (int64_t task = begin; task < end; ++task) {{
    const int64_t image = task / {pixel_blocks}, p0 = task % {pixel_blocks} * {pixel_block};
    const int64_t count = min({pixel_block}, {pixels} - p0);
{task_split}{tile_code}  }}
",
        pixel_blocks = cpp::dim(&pixel_blocks),
        pixels = cpp::dim(&geometry.pixels),
    );
    // Packed weights, taps in the order (kh, kw, channel) of the gathers.
    let khw = cpp::dim(&(geometry.kh.clone() * geometry.kw.clone()));
    let pack_body = format!(
        "  for (int64_t block = begin; block < end; ++block) {{
    float* to = packed + block * {channel_block} * {taps};
    for (int64_t tap = 0; tap < {taps}; ++tap) {{
      const int64_t position = tap / {channels}, channel = tap % {channels};
      for (int64_t j = 0; j < {channel_block}; ++j) {{
        const int64_t filter = block * {channel_block} + j;
        to[tap * {channel_block} + j] = filter < {filters} ? w[(filter * {channels} + channel) * {khw} + position] : 0.0f;
      }}
    }}
  }}
",
        taps = cpp::dim(&taps),
        channels = cpp::dim(&geometry.channels),
        filters = cpp::dim(&geometry.filters),
    );
    let mut dims = c.epilogue.dims();
    dims.extend(x.shape.iter().chain(&w.shape).chain(&out.shape).cloned());
    let symbols = cpp::symbols_of(&dims);
    let sizes: Vec<Dim> = symbols.iter().map(|s| Dim::symbol(s)).collect();
    // Packing happens before any input is seen: it may know nothing of the images.
    let pack_symbols = cpp::symbols_of([&taps, &geometry.channels, &geometry.filters, &geometry.kh, &geometry.kw]);
    let mut with_packed = region_parameters(spec.region);
    with_packed
        .insert(spec.region.inputs().len(), Parameter { name: "packed".into(), dtype: DType::F32, write: false });
    let pack_parameters = [
        Parameter { name: "w".into(), dtype: DType::F32, write: false },
        Parameter { name: "packed".into(), dtype: DType::F32, write: true },
    ];
    let source = format!(
        "#include \"forge_gemm.hpp\"\n\n{}\n{}",
        cpp::kernel("packs the filters for the tile", "pack", &pack_parameters, &pack_symbols, &pack_body),
        cpp::kernel(&spec.region.to_text(), "conv_epilogue", &with_packed, &symbols, &body)
    );
    let (mut reads, writes) = region_slots(spec.region);
    reads.push(Slot::Packed(0));
    let launch = LaunchPlan {
        temporaries: Vec::new(),
        packed: vec![channel_blocks.clone() * Dim::from(channel_block * 4) * taps.clone()],
        prepare: vec![Launch::Kernel {
            symbol: "pack".into(),
            reads: vec![Slot::Input(c.w)],
            writes: vec![Slot::Packed(0)],
            sizes: pack_symbols.iter().map(|s| Dim::symbol(s)).collect(),
            grid: channel_blocks,
            grain: Dim::from(1),
            scratch: Dim::from(0),
        }],
        launches: vec![Launch::Kernel {
            symbol: "conv_epilogue".into(),
            reads,
            writes,
            sizes,
            grid,
            grain: Dim::from(1),
            scratch: taps * Dim::from(pixel_block * 4),
        }],
    };
    Ok(candidate("conv_epilogue", &source, launch, parameters))
}

struct Geometry {
    channels: Dim,
    filters: Dim,
    h: Dim,
    w: Dim,
    kh: Dim,
    kw: Dim,
    ow: Dim,
    pixels: Dim,
    window: Window,
    input: usize,
}

impl Geometry {
    /// `patches[tap][width]`: each tap's row is filled by runs of pixels of one output row.
    fn gather_panel(&self, width: i64) -> String {
        self.taps_loop(&format!(
            "        // Runs of pixels that share an output row are contiguous in the panel.
        for (int64_t j = 0; j < {width};) {{
          const int64_t p = p0 + j, oh = p / {ow}, ow = p % {ow};
          const int64_t run = j < count ? min(count - j, {ow} - ow) : {width} - j;
          const int64_t ih = oh * {sh} - {ph} + kh * {dh}, first = ow * {sw} - {pw} + kw * {dw};
          const bool inside = j < count && ih >= 0 && ih < {h};
          const int64_t low = !inside ? run : min(run, first >= 0 ? 0 : (-first + {sw} - 1) / {sw});
          const int64_t high = !inside ? run : max(low, min(run, first >= {w} ? 0 : ({w} - 1 - first) / {sw} + 1));
          for (int64_t channel = 0; channel < {channels}; ++channel) {{
            float* to = patches + (position * {channels} + channel) * {width} + j;
            const float* from = x + (channel * {h} + ih) * {w} + first;
            for (int64_t i = 0; i < low; ++i) to[i] = 0.0f;
            for (int64_t i = low; i < high; ++i) to[i] = from[i * {sw}];
            for (int64_t i = high; i < run; ++i) to[i] = 0.0f;
          }}
          j += run;
        }}
",
            ow = cpp::dim(&self.ow),
            sh = self.window.strides[0],
            sw = self.window.strides[1],
            ph = self.window.pads_begin[0],
            pw = self.window.pads_begin[1],
            dh = self.window.dilations[0],
            dw = self.window.dilations[1],
            h = cpp::dim(&self.h),
            w = cpp::dim(&self.w),
            channels = cpp::dim(&self.channels),
        ))
    }

    /// `patches[pixel][tap]`.
    fn gather_rows(&self) -> String {
        self.taps_loop(&format!(
            "        for (int64_t j = 0; j < count; ++j) {{
          const int64_t p = p0 + j, oh = p / {ow}, ow = p % {ow};
          const int64_t ih = oh * {sh} - {ph} + kh * {dh}, iw = ow * {sw} - {pw} + kw * {dw};
          float* to = patches + j * {taps} + position * {channels};
          if (ih < 0 || ih >= {h} || iw < 0 || iw >= {w}) {{
            for (int64_t channel = 0; channel < {channels}; ++channel) to[channel] = 0.0f;
          }} else {{
            const float* from = x + ih * {w} + iw;
            for (int64_t channel = 0; channel < {channels}; ++channel) to[channel] = from[channel * {h} * {w}];
          }}
        }}
",
            taps = cpp::dim(&(self.channels.clone() * self.kh.clone() * self.kw.clone())),
            ow = cpp::dim(&self.ow),
            sh = self.window.strides[0],
            sw = self.window.strides[1],
            ph = self.window.pads_begin[0],
            pw = self.window.pads_begin[1],
            dh = self.window.dilations[0],
            dw = self.window.dilations[1],
            h = cpp::dim(&self.h),
            w = cpp::dim(&self.w),
            channels = cpp::dim(&self.channels),
        ))
    }

    fn taps_loop(&self, body: &str) -> String {
        format!(
            "    const float* x = in{input} + image * {channels} * {h} * {w};
    for (int64_t kh = 0; kh < {kh}; ++kh) {{
      for (int64_t kw = 0; kw < {kw}; ++kw) {{
        const int64_t position = kh * {kw} + kw;
{body}      }}
    }}
",
            input = self.input,
            channels = cpp::dim(&self.channels),
            h = cpp::dim(&self.h),
            w = cpp::dim(&self.w),
            kh = cpp::dim(&self.kh),
            kw = cpp::dim(&self.kw),
        )
    }
}
