// Shapes of the data in a page, and what the core and the panels pass to each other. Types only: no
// page contains this file. Sections are made by the Python modules that their comments name.

// -- nodes

/** Content of a node: strings and numbers become text, null and false are left out. */
type Child = Node | string | number | null | undefined | false | readonly Child[];

/** An event whose target is the node that has the listener. */
type On<E, T = HTMLElement> = E & { readonly target: T; readonly currentTarget: T };

/** Attributes of a node: null, undefined and false are left out, true is the empty string. */
interface Attributes<T> {
  [name: string]: unknown;
  class?: string | null | false;
  title?: string | null | false;
  style?: string | Partial<CSSStyleDeclaration> | null | false;
  onclick?: ((event: On<MouseEvent, T>) => unknown) | null | false;
  onchange?: ((event: On<Event, T>) => unknown) | null;
  oninput?: ((event: On<InputEvent, T>) => unknown) | null;
  onsubmit?: ((event: On<SubmitEvent, T>) => unknown) | null;
  onkeydown?: ((event: On<KeyboardEvent, T>) => unknown) | null | false;
  onfocus?: ((event: On<FocusEvent, T>) => unknown) | null | false;
  onpointermove?: ((event: On<PointerEvent, T>) => unknown) | null;
  onpointerenter?: ((event: On<PointerEvent, T>) => unknown) | null | false;
  onpointerleave?: ((event: On<PointerEvent, T>) => unknown) | null | false;
  ondragover?: ((event: On<DragEvent, T>) => unknown) | null;
  ondragleave?: ((event: On<DragEvent, T>) => unknown) | null;
  ondrop?: ((event: On<DragEvent, T>) => unknown) | null;
}

// -- arrays

type Shape<N extends number, S extends number[] = []> = number extends N
  ? number[]
  : S["length"] extends N
    ? S
    : Shape<N, [...S, number]>;

/** Numbers with `N` axes: a `PackedArray` of the kinds u8, sqrt8, f16 or f32. */
type Floats<N extends number = number> = Float32Array & { shape: Shape<N> };

/** Whole numbers with `N` axes: a `PackedArray` of the kind i32. */
type Ints<N extends number = number> = Int32Array & { shape: Shape<N> };

/** Small whole numbers with `N` axes: a `PackedArray` of the kind u16. */
type Shorts<N extends number = number> = Uint16Array & { shape: Shape<N> };

type Packed<N extends number = number> = Floats<N> | Ints<N> | Shorts<N>;

/** The axes that remain after these first indices. */
type Rest<S, I> = I extends [number, ...infer J]
  ? S extends [number, ...infer T]
    ? Rest<T, J>
    : S
  : S;

/** The part of an array at these first indices: a number if an index is given for every axis. */
type Part<A extends Packed, I> =
  Rest<A["shape"], I> extends []
    ? number
    : (A extends Float32Array ? Float32Array : A extends Int32Array ? Int32Array : Uint16Array) & {
        shape: Rest<A["shape"], I>;
      };

/** A record of an array in the JSON header: kind, shape, offset in bytes, ends of the scale. */
type ArrayRecord = [
  kind: "u8" | "sqrt8" | "f16" | "f32" | "i32" | "u16",
  shape: number[],
  offset: number,
  low: number,
  high: number,
];

type Numbers = ArrayLike<number>;

// -- charts

type ColourMap = "blues" | "oranges" | "diverging";
type Rgb = number[];

interface Scale {
  low?: number;
  high?: number;
  map?: ColourMap;
}

/** A row of a table of numbers for export, or of a table on the page. */
type Cell = string | number | null | undefined;
type Row = ArrayLike<Cell | boolean>;

interface FrameOptions {
  title: string;
  hint?: string | null;
  /** Name in the attribute `data-card` and in the names of exported files. */
  name?: string;
  csv?: (() => Row[]) | null;
  /** The drawing to export; otherwise the whole body of the card. */
  svg?: () => Element | null;
}

interface Bar {
  label: string;
  value: number;
  /** Text instead of the number. */
  shown?: string;
  note?: string | null;
  title?: string;
  colour?: string | null;
  picked?: boolean;
  /** Ends of the interval of the value. */
  range?: [low: number, high: number] | null;
}

interface BarsOptions<B> {
  max?: number | null;
  unit?: string;
  digits?: number;
  colour?: string;
  onclick?: ((item: B, index: number) => unknown) | null;
}

interface Tile {
  name: string;
  value: Child;
  note: string;
}

type Tick = [value: number, text: string | null];

/** A value that is not finite or is null interrupts a line. */
type Point = [x: number, y: number | null];

interface AxisOptions {
  label?: string;
  low?: number | null;
  high?: number | null;
  log?: boolean;
  /** Largest possible value, beyond which the axis does not go. */
  most?: number | null;
  ticks?: Tick[];
}

/** An axis with both ends, ticks, and the position of a value between the ends. */
interface Axis extends AxisOptions {
  low: number;
  high: number;
  ticks: Tick[];
  share: (value: number) => number;
}

interface Series {
  name: string;
  points: Point[];
  colour?: string | null;
}

interface LinesOptions {
  series: Series[];
  x: string | AxisOptions;
  y: string | AxisOptions;
  height?: number;
  onclick?: (x: number) => unknown;
  /** An x to mark. */
  mark?: number | null;
  /** The best point with its label. */
  best?: [x: number, y: number, text: string] | null;
  /** Horizontal lines. */
  levels?: [name: string, y: number][];
}

interface AxesOptions {
  x: string | AxisOptions;
  y: string | AxisOptions;
  /** Values that the axes must cover. */
  xs?: number[];
  ys?: (number | null)[];
  height?: number;
  /** Whether the horizontal axis ends at the last value instead of the next round number. */
  tight?: boolean;
  label?: string;
}

/** A chart from Python, as `training/report.py` describes it. */
interface Chart {
  title: string;
  series: Series[];
  better?: "lower" | "higher";
  log?: boolean;
  zero?: boolean;
  most?: number | null;
  best?: [x: number, y: number, text: string] | null;
  levels?: [name: string, y: number][];
}

interface Column {
  name: string;
  title?: string;
  digits?: number;
}

interface TableOptions<R> {
  onclick?: ((row: R, index: number) => unknown) | null;
  picked?: number;
}

interface TokensOptions {
  /** A number that colours a token; null leaves it without a colour. */
  value?: (index: number) => number | null;
  map?: ColourMap;
  low?: number;
  high?: number;
  digits?: number;
  picked?: number | null;
  title?: (index: number) => string;
  onclick?: (index: number) => unknown;
  onhover?: (index: number | null) => unknown;
}

interface Chip<K> {
  key: K;
  label?: string;
  title?: string;
  note?: string | number;
}

interface HeatmapOptions {
  rows: readonly string[];
  columns: readonly string[];
  /** Row by row; or `get`. */
  data?: Numbers | null;
  get?: (row: number, column: number) => number;
  scale?: Scale;
  label?: string;
  /** Row and column that are outlined. */
  row?: number;
  column?: number;
  /** Longest side of a cell, in pixels. */
  size?: number;
  /** Room in pixels, if it is not that of the host. */
  width?: number;
  /** All arguments are null when the pointer leaves. */
  onhover?: (row: number | null, column: number | null, value: number | null) => unknown;
  /** The column is null for a click on the name of a row. */
  onclick?: (row: number, column: number | null, value: number | null) => unknown;
}

// -- the page

interface Stream {
  pieces: string[];
  /** The number of the word that a piece belongs to, or -1. */
  words: number[];
  special: boolean[];
  /** Short names of patches and stretches of audio. */
  short?: string[];
}

/** Some tokens to show: without `words` or `special`, none is joined or special. */
interface Tokens {
  pieces: string[];
  words?: number[] | false;
  special?: boolean[];
}

interface Output {
  /** The token at whose position the output is read; null: the whole input. */
  row: number | null;
  id: number;
  name: string;
}

/** Measured accuracy of maps, written by `headway truth`. */
interface Truth {
  /** How the truth is known, and the number of its items. */
  task?: string;
  n?: number;
  sha256?: string;
  maps: Record<string, { p1: number; n: number; random?: number | null; aer?: number | null }>;
  /** The best single head, with its accuracy on the items by which it was chosen. */
  best?: { name: string; p1: number; p1_chosen?: number; aer?: number | null; n?: number } | null;
  facts?: {
    times?: {
      words: number;
      own_ms?: Record<string, number>;
      median_ms: Record<string, number>;
    };
  };
  /** What `n` counts: "words", "cases". */
  unit?: string;
}

/** One input in one model, or in one checkpoint: `look_data` of `inside/page/sections`. */
interface Look {
  label: string;
  step?: number;
  task?: string;
  text?: string;
  streams: Record<string, Stream>;
  outputs: Output[];
  truth?: Truth | null;
  sections: Partial<Sections>;
}

/** The data of a page: `page_data` of `web/html.py`. */
interface PageData {
  title: string;
  run: { name?: string; facts?: string[] };
  /** Names of the tabs in their order. */
  order: PanelName[];
  looks: Look[];
  shared: Partial<Sections> & { live?: LiveSection; truth?: Truth };
}

interface Head {
  kind: string;
  layer: number;
  head: number;
}

/** The state of the view. Keys of one panel begin with its name. */
interface State {
  tab?: string;
  look?: number;
  other?: number;
  kind?: string;
  layer?: number;
  head?: number;
  row?: number;
  column?: number;
  map?: string;
  attention_view?: string;
  audioMap?: string;
  audioTimes?: string;
  beamNode?: number;
  beamShow?: string;
  featuresFactor?: number;
  featuresFind?: string;
  featuresSort?: string;
  featuresStream?: string;
  featuresToken?: number;
  heads_by?: string;
  imageMap?: string;
  imageOpacity?: string;
  imageStyle?: string;
  lens?: string;
  lensmode?: string;
  neighboursStream?: string;
  neuronsFactor?: number;
  neuronsN?: number;
  neuronsStack?: string;
  overview_item?: number;
  saliencyMap?: string;
  settingsHow?: string;
}

/** Changes of the state: null removes a key. */
type StateChanges = { [K in keyof State]?: State[K] | null };

/** What the panels of a page can read and change: `makePage` of `state.js`. */
interface Page {
  data: PageData;
  state: State;
  /** The controls of a served page. */
  live: Live | null;
  /** The head that the panel shows, which a served page offers to switch off. */
  shown?: Head | null;
  readonly look: Look;
  /** The look that is compared with `look`. */
  readonly other: Look | null;
  /** Whether the looks are checkpoints. */
  readonly steps: boolean;
  readonly truths: Truth | null | undefined;
  section<N extends PanelName>(name: N): Sections[N] | null;
  otherSection<N extends PanelName>(name: N): Sections[N] | null;
  stream(name: string): Stream;
  /** "cross 3.6": the displayed name of a head, counted from 1. */
  head(kind: string, layer: number, head: number): string;
  set(changes: StateChanges): void;
  /** "P@1 0.94 (random 0.14), 212 words", or "not validated". */
  truth(map: string): string;
  /** Shows other data, packed by `pack`, and keeps the state. */
  open(packed: string): Promise<void>;
}

/** Limits of the keyboard navigation, and where it starts. */
interface Limits {
  row?: number;
  layer?: number;
  head?: number;
  now?: { kind?: string; layer?: number; head?: number; row?: number };
}

interface Panel<S> {
  title: string;
  draw(host: HTMLElement, section: S, page: Page): unknown;
  limits?(section: S, page: Page): Limits;
}

type PanelName = keyof Sections;
type Panels = { [N in PanelName]?: Panel<Sections[N]> } & {
  image?: { frames(page: Page): HTMLCanvasElement[] };
};

// -- sections of `headway look`: `inside/page/sections/<name>.py`

interface Sections {
  overview: OverviewSection;
  image: ImageSection;
  audio: AudioSection;
  walk: WalkSection;
  attention: AttentionSection;
  beam: BeamSection;
  saliency: SaliencySection;
  lens: LensSection;
  ngrams: NgramsSection;
  neurons: NeuronsSection;
  features: FeaturesSection;
  heads: HeadsSection;
  positions: PositionsSection;
  neighbours: NeighboursSection;
  training: TrainingSection;
  compare: CompareSection;
  summary: SummarySection;
  curves: { charts: Chart[] };
  answers: AnswersSection;
  samples: SamplesSection;
  data: DataSection;
  settings: SettingsSection;
  log: LogSection;
  lab: LabSection;
  labnumbers: { rows: [name: string, ...values: (Cell | boolean)[]][] };
  labindex: { rows: LabIndexRow[] };
}

interface AnswerItem {
  name: string;
  row: number | null;
  p: number;
  choices: [label: string, probability: number][];
}

/** A vector, a number or a reconstruction has a `size`, other answers have `items`. */
interface OverviewAnswer {
  kind: string;
  size?: number;
  said?: string;
  length?: number | null;
  writes?: boolean;
  given?: number;
  items?: AnswerItem[];
}

interface OverviewSection {
  numbers: { name: string; value: number | string; note: string }[];
  answer: OverviewAnswer;
  warnings: { text: string; heads: [name: string, token: string, share: number][] }[];
}

/** The rows of the outputs of a word; `word` is -1 for special tokens. */
interface WordGroup {
  name: string;
  word: number;
  rows: number[];
}

/** A map over all layers, of outputs by rows of the input. */
interface MediaMap {
  key: string;
  label: string;
  how: string;
  weights: Floats<2>;
}

interface FirstMap {
  map: string;
  layer: number;
  head: number;
  /** Whether it was chosen by its measured accuracy. */
  measured: boolean;
}

interface ImageSection {
  kind: string;
  grid: [frames: number, rows: number, columns: number];
  /** Special tokens before the patches. */
  extra: number;
  tubelet: number;
  /** Frames by height, width and channels; null in checkpoints. */
  frames: Floats<4> | null;
  /** Place of the patches in fractions of height and width. */
  cells: { origin: [number, number]; step: [number, number] };
  groups: WordGroup[];
  /** For each layer: heads by outputs by tokens. */
  heads: Floats<3>[];
  maps: MediaMap[];
  skipped: [label: string, why: string][];
  first: FirstMap;
  style: "fog" | "light";
  caution: string;
}

interface TimedWord {
  text: string;
  start: number;
  end: number;
  /** Start and end, moved to pauses. */
  moved: [number, number];
  confidence: number | null;
}

interface WordTimes {
  key: string;
  how: string;
  own_ms: number | null;
  median_ms: number | null;
  words: TimedWord[];
}

interface AudioSection {
  kind: string;
  seconds: number;
  row_s: number;
  n_rows: number;
  groups: WordGroup[];
  /** Only in the last look: log-mel frames by bands, lowest and highest samples, the recording. */
  mel?: Floats<2> | null;
  wave?: Floats<2>;
  audio?: string | null;
  aligning: [layer: number, head: number][];
  shares: number[][] | null;
  rows: [from: number, to: number][] | null;
  follows: boolean;
  says: string;
  /** For each layer: outputs by rows. */
  means: Floats<2>[];
  /** For each layer: heads by outputs by rows; null if they are too many. */
  heads: Floats<3>[] | null;
  /** The aligning heads by "layer.head" where `heads` is null. */
  some?: Record<string, Floats<2>>;
  maps: MediaMap[];
  skipped: [label: string, why: string][];
  times: WordTimes[];
  ctc: { names: string[]; probabilities: Floats<2> } | null;
  first: FirstMap;
  caution: string;
}

/** A step of the walkthrough; what else it has depends on its kind. */
interface WalkStep {
  kind: string;
  title: string;
  words: string;
  /** Names of the vectors that it reads. */
  inputs: string[];
  /** Name of the vector that it computes. */
  out: string;
  /** Mean and spread of the input of a norm, as the page computes them. */
  mean?: number;
  spread?: number;
  weight?: Floats;
  bias?: Floats<1>;
  centred?: boolean;
  eps?: number;
  rows?: Ints<1>;
  from_rows?: Ints<1>;
  cos?: Floats<1>;
  sin?: Floats<1>;
  columns?: Ints<1>;
  shown?: number;
  others?: number;
  keys?: Floats<2>;
  scale?: number;
  vectors?: Floats<2>;
  rest?: Floats<1>;
  activation?: string;
  neurons?: Ints<1>;
}

/** A step that has these numbers. */
type StepWith<K extends keyof WalkStep> = WalkStep & Required<Pick<WalkStep, K>>;

interface WalkSection {
  at: Head & { row: number };
  stack: string;
  token: string;
  /** Output at this token, if it has one. */
  says: string | null;
  heads: Record<string, number>;
  focus: Record<string, number>;
  /** By kind of attention: the streams of rows and columns. */
  streams: Record<string, [rows: string, columns: string]>;
  n_heads: Record<string, number[]>;
  vectors: Record<string, Floats<1>>;
  labels: Record<string, string>;
  steps: WalkStep[];
}

interface AttentionKind {
  name: string;
  rows: string;
  columns: string;
  /** Side of a cell in tokens. */
  block: number;
  /** For each layer: heads by rows by columns. */
  layers: Floats<3>[];
  /** With blocks: rows that were pinned, and their exact weights. */
  pinned?: number[];
  exact?: Floats<3>[];
}

interface AttentionSection {
  kinds: AttentionKind[];
}

/** Nodes of the tree by number; node 0 is the root. */
interface BeamSection {
  summary: string;
  stopped: string;
  hint: string;
  about: string;
  note: string;
  seen: string;
  tally: string;
  settings: {
    beam: number;
    groups: number;
    alpha: number;
    penalty: string;
    limit: number;
    kind: string;
  };
  totals: Record<"scored" | "ruled_out" | "expanded" | "kept" | "cut" | "rest", number>;
  /** Names of the exported columns. */
  facts: BeamFact[];
  outputs: number[];
  label: string[];
  row: Shorts<1>;
  /** 2 on the best path, 1 on a path to a finished or open hypothesis, otherwise 0. */
  live: Shorts<1>;
  parent: Ints<1>;
  piece: string[];
  token_log_prob: Floats<1>;
  log_prob: Floats<1>;
  score: Floats<1>;
  step: Shorts<1>;
  rank: Shorts<1>;
  group: Shorts<1>;
  fate: string[];
  why: string[];
  place: Shorts<1>;
  /** By node: piece, log-probability and node (-1: not in the tree) of the best next tokens. */
  next: Record<number, [piece: string, logProb: number, child: number][]>;
  columns: string[];
  counts: (number | null)[][];
  /** Attention of expanded nodes to the source, and the row of each node or -1. */
  attention: { rows: Floats<2>; row: Ints<1> } | null;
}

type BeamFact =
  "parent" | "step" | "group" | "rank" | "piece" | "log_prob" | "score" | "fate" | "why";

interface SaliencyMethod {
  key: string;
  label: string;
  how: string;
  /** The first layer that the page has. */
  first: number;
  names: string[];
  signed: boolean;
  /** Layers by outputs by the tokens of all streams. */
  weights: Floats<3>;
  shares: (number[] | null)[];
  agree: (number | null)[];
  unit: string;
  facts: { steps?: number; error?: number };
}

interface SaliencySection {
  columns: [stream: string, size: number][];
  causal: boolean;
  pooling: string;
  methods: SaliencyMethod[];
  skipped: [label: string, why: string][];
  caution: string;
}

interface LensView {
  name: string;
  /** Layers by outputs by candidates: indices into `words`. */
  top: Shorts<3> | Ints<3>;
  probability: Floats<3>;
  rank: Ints<2>;
  chosen: Floats<2>;
  kl: Floats<2>;
  decided: (number | null)[];
}

interface LensSection {
  how: string;
  what?: string;
  outputs: string[];
  reads: string[];
  layers: string[];
  n_given: number;
  words: string[];
  views: LensView[];
  /** Only for models that output a vector. */
  cosine?: Floats<1>;
  fitted?: { plain: number[]; tuned: number[]; lines: number; held_out: number };
}

interface NgramsSection {
  kind: string;
  share: number;
  outputs: {
    label: string;
    members: [name: string, label: string, own: number, final: number][];
    effects: [name: string, effect: number][];
  }[];
  tokens: Floats<2>;
}

interface NeuronFactors {
  /** Factors by tokens. */
  weights: Floats<2>;
  /** Factors by layers. */
  layers: Floats<2>;
  explained: number;
  top: [layer: number, neuron: number, loading: number][][];
}

interface NeuronsSection {
  stacks: Record<
    string,
    {
      stream: string;
      layers: number;
      neurons: number;
      usual: number;
      clipped: number;
      choices: Record<number, NeuronFactors>;
    }
  >;
}

type FactorContext = [stream: string, at: number, pieces: string[], image?: string];

interface Factor {
  fires: number;
  strength: number;
  profile: number[];
  site: number;
  effect: { kl: number; nats: number } | null;
  promotes?: [word: string, logit: number][];
  suppresses?: [word: string, logit: number][];
  contexts: FactorContext[];
}

interface FeaturesSection {
  figures: {
    method: string;
    n: number;
    k: number;
    unit: string;
    explained: number;
    l0: number;
    recovered: number | null;
    dead: number;
  };
  sites: [stack: string, layer: number][];
  total: number;
  /** The numbers of the factors on this page. */
  numbers: number[];
  factors: Factor[];
  /** Factors by contexts by tokens. */
  values: Floats<3>;
  /** By stream: factors by tokens. */
  here: Record<string, Floats<2>>;
}

interface HeadMeasure {
  key: "importance" | "entropy" | "distance";
  map: ColourMap;
  unit: string;
  title: string;
}

interface HeadMetrics extends Head {
  /** The original number of a head in a pruned model. */
  number: number;
  importance: number;
  entropy: number;
  evenness: number;
  distance: number;
  roles: string[];
  scores: Record<string, number>;
}

interface HeadKind {
  name: string;
  rows: string;
  columns: string;
  n_layers: number;
  n_heads: number;
  shared: boolean;
}

interface HeadsSection {
  kinds: HeadKind[];
  heads: HeadMetrics[];
  roles: { name: string; mark: string; threshold: number; meaning: string }[];
  role_note: string;
  measures: HeadMeasure[];
  n_texts: number;
  n_outputs: number;
  loss: number;
  one_text: boolean;
  scope: string;
  curve: {
    hint: string;
    note: string;
    series: Series[];
    metric: string;
    higher_is_better: boolean;
    n_heads: number;
  } | null;
  command: string;
}

type PositionKind =
  "learned" | "sinusoidal" | "sinusoidal-halves" | "rotary" | "alibi" | "relative";

interface PositionBias {
  kind: PositionKind;
  stacks: string[];
  bias: Floats<2>;
  distances: number[];
}

/** `exact` and `blocks` are known for rotations only. */
interface PositionShift {
  k: number;
  exact: number | null;
  fitted: number;
  tested: number;
  blocks: number | null;
}

interface PositionTable {
  kind: PositionKind;
  stacks: string[];
  bias?: undefined;
  n_places: number;
  n_table: number;
  image: Floats<2>;
  colours: number;
  kernel: Floats<1>;
  spread: Floats<1>;
  twin: number;
  twin_apart: number;
  kernel_spearman: number;
  shifts: PositionShift[];
  slow: [length: number, share: number][];
  slow_here: number;
  code_use: Floats<1>;
  use: Floats<1>;
  use_spearman: number;
  turn?: Floats<2>;
}

interface PositionsSection {
  codes: (PositionBias | PositionTable)[];
  n_tokens: number;
}

interface NeighbourLayer {
  stack: string;
  layer: number;
  stream: string;
  places: number[];
  /** For each place: numbers of `texts`. */
  hits: number[][];
  cosines: Floats<2>;
}

interface NeighboursSection {
  corpus: string;
  tokens: Record<string, number>;
  texts: [at: number, pieces: string[], image?: string][];
  layers: NeighbourLayer[];
}

/** A logged line has points, a measured one a value for each stage. */
type TrainingLine = { name: string } & (
  { points: Point[]; values?: undefined } | { points?: undefined; values: (number | null)[] }
);

interface TrainingFigure {
  name: string;
  title: string;
  unit: string;
  hint: string;
  series: TrainingLine[];
}

/** `inside/page/sections/training.py`; all looks share it. */
interface TrainingSection {
  labels: string[];
  steps: number[];
  figures: TrainingFigure[];
  n_tokens: number;
  kept: string;
}

interface ComparedOutput {
  name: string;
  id: number;
  log_prob: number;
  top: [word: string, probability: number][];
}

/** `inside/page/compare.py`; all looks share it. */
interface CompareSection {
  pair: boolean;
  /** Why values cannot be subtracted, by kind of attention. */
  fits: Record<string, string | null>;
  sides: { outputs: ComparedOutput[] }[];
}

// -- the controls of a served page: `inside/page/live.py`

interface LookRequest {
  text: string;
  output: string | null;
  force: string;
  hidden: [stream: string, place: number][];
  off: string[];
  walk?: [kind: string, layer: number, head: number, row: number] | null;
  checkpoint: string | null;
  beam: number | null;
  length_penalty_alpha: number | null;
  temperature: number | null;
  seed: number;
  new: number;
  maps: boolean;
}

interface LiveSection {
  request: LookRequest;
  /** The address for requests, and what each request repeats. */
  asked: { post: string } & Record<string, unknown>;
  plain: Omit<LookRequest, "text">;
  continues: boolean;
  writes: boolean;
  media: boolean;
  usual: { beam: number; length_penalty_alpha: number };
  checkpoints: string[];
  given: number;
  /** By kind of attention: heads in each layer. */
  heads: Record<string, number[]>;
  answer: string;
  note: string;
}

/** Keys of a request that have a text field. */
type LookField = "force" | "beam" | "length_penalty_alpha" | "temperature" | "seed" | "new";

interface Live {
  /** The request as the fields show it; null before the first drawing. */
  draft: LookRequest | null;
  /** What the status line shows, and whether it is an error. */
  said: string;
  bad: boolean;
  busy: boolean;
  /** Number of answers so far, for tests that wait. */
  answers: number;
  send(request: LookRequest, asked: LiveSection["asked"]): Promise<{ packed: string }>;
  /** Sends the request with these changes. The page then shows the answer and keeps its state. */
  look(page: Page, changes?: Partial<LookRequest>): Promise<void>;
  /** Writes the status line. */
  tell(root?: ParentNode): void;
  /** Draws the controls below the title. */
  bar(top: HTMLElement, page: Page): void;
  /** Draws the input tokens. A click hides a token from all others, a second click shows it again. */
  hideable(strip: HTMLElement, page: Page, act: (changes: Partial<LookRequest>) => void): void;
  /** Draws the heads that are off, and a button for the head that the panel shows. */
  heads(strip: HTMLElement, page: Page, act: (changes: Partial<LookRequest>) => void): void;
}

// -- sections of the training report: `training/report.py`

interface Metric {
  label: string;
  unit: string;
  lower: boolean;
  digits: number;
}

interface ComparedScore {
  name: string;
  value: number;
  low: number | null;
  high: number | null;
}

interface ScoreColumn {
  name: string;
  kept?: boolean;
  baseline?: boolean;
  values: (number | null)[];
}

interface SummarySection {
  status: string;
  said: string[];
  tiles: Tile[];
  compared: { metric: Metric; rows: ComparedScore[] } | { rows?: undefined };
  few: { lines?: Series[] };
  scores: { rows: Metric[]; columns: ScoreColumn[] } | { rows?: undefined };
  card: [name: string, value: string][];
}

/** A validation example with media: an image, or the outline of a recording. */
interface ShownMedia {
  image?: string;
  /** The key of `image` in older runs. */
  picture?: string;
  wave?: number[];
}

interface ExampleFigure extends ShownMedia {
  true: string;
  said: string;
  sure: number;
}

interface ExampleFigures {
  classes?: ExampleFigure[];
  confused?: {
    true: string;
    said: string;
    count: number;
    share: number;
    examples: ExampleFigure[];
  }[];
  wrong?: ExampleFigure[];
  right?: ExampleFigure[];
}

interface ConfusionFigure {
  labels: string[];
  counts: number[][];
}

interface CalibrationFigure {
  bins: { low: number; high: number; count: number; confidence: number; accuracy: number }[];
  ece: number;
  ece_after?: number;
  temperature?: number;
}

interface ClassScores {
  label: string;
  precision: number;
  recall: number;
  f1: number;
  support?: number;
}

interface VerificationFigure {
  eer: number;
  threshold: number;
  same: number;
  other: number;
}

interface ModelSpeed {
  parameters: number;
  batches_per_s: number;
  scores: Record<string, number>;
}

interface DistilledFigure {
  metric: string;
  teacher: ModelSpeed;
  student: ModelSpeed;
}

interface DescribedExample extends ShownMedia {
  target: string;
  output: string;
}

interface AnswerFigures {
  confusion?: ConfusionFigure;
  calibration?: CalibrationFigure;
  numbers?: [truth: number, predicted: number][];
  classes?: ClassScores[];
  verification?: VerificationFigure;
  distilled?: DistilledFigure;
  examples?: ExampleFigures;
  /** The key of `examples` in older runs. */
  pictures?: ExampleFigures;
  described?: DescribedExample[];
}

interface AnswersSection {
  /** The model that the figures are about. */
  of: string;
  figures: AnswerFigures;
}

interface SamplesSection {
  names: [source: string, target: string];
  steps: number[];
  samples: {
    source: string | null;
    target: string | null;
    outputs: (string | null)[];
  }[];
}

interface DataSection {
  tables: {
    file: string;
    form?: string;
    columns?: [name: string, need: string | null, kind: string, example: string][];
  }[];
  findings?: {
    level: string;
    name?: string;
    count?: number;
    text: string;
    examples?: { place: string; source: string; target?: string }[];
  }[];
  counts?: string[];
  labels?: [label: string, training: number, validation: number][];
}

interface SettingsSection {
  rows?: [key: string, value: string, how: string, reason: string][];
  /** The file itself where it cannot be parsed. */
  text?: string;
}

interface LogSection {
  metrics: Metric[];
  evaluations: [step: number, ...values: (number | null)[]][];
  events: [step: number, text: string][];
  more: string;
}

// -- sections of the lab: `lab/page.py`

interface Effect {
  name: string;
  unit: string;
  value: number | null;
  low: number | null;
  high: number | null;
  spread: number | null;
  seeds: number;
  detectable?: number | null;
  exact: boolean;
  hides_more?: boolean;
  hides_less?: boolean;
  limits?: string[];
}

type LabFigure = { title: string; hint: string } & (
  | {
      kind: "lines";
      series: Series[];
      x: string | AxisOptions;
      y: string | AxisOptions;
      levels?: [name: string, y: number][];
    }
  | {
      kind: "bars";
      bars: {
        label: string;
        value: number;
        low: number | null;
        high: number | null;
        note?: string;
      }[];
      max?: number | null;
      unit?: string;
    }
  | {
      kind: "heatmap";
      values: number[][];
      rows: string[];
      columns: string[];
      low: number;
      high: number;
      map: ColourMap;
      label: string;
    }
  | { kind: "table"; columns: string[]; rows: Cell[][] }
);

type LabVerdict = "supported" | "refuted" | "undecided" | "cannot tell";

/** The contents of `verdict.json`. */
interface LabFacts {
  experiment: string;
  number: number;
  question: string;
  verdict: LabVerdict;
  parts?: Record<string, LabVerdict>;
  doubts?: string[];
  answer: string;
  measured: string;
  hypothesis: string;
  size: "quick" | "full";
  effect: Effect | null;
  more: Effect[];
  control: string;
  controls: { name: string; passed: boolean; said: string }[];
  method: string[];
  changes?: string;
  literature: [who: string, says: string, stance: string][];
  date: string;
  minutes: number;
  cpu_minutes: number;
  machine: string;
  seeds: number;
  first_seed: number;
  data: string | null;
  versions: Record<string, string>;
}

type LabSection = LabFacts & { figures: LabFigure[] };

/** An experiment of the index: without facts and the address of its page if it was not run. */
type LabIndexRow = Partial<LabFacts> & {
  number: number;
  experiment: string;
  question: string;
  page?: string;
};
