// What the page at `/` of `headway serve` sends and receives. Types only: the server does not send
// this file.

/** A model in the answer of /v1/models: `model_json` of `serve/routes/predict.py`. */
interface ServedModel {
  id: string;
  headway: ModelFacts;
}

interface ModelFacts {
  task: string;
  reads: "text" | MediaKind;
  /** Kind of the answers: "text", "label", "vector". */
  answers: string;
  writes: boolean;
  continues: boolean;
  inputs: string[];
  fields: string[];
  labels: string[];
  options: ModelOption[];
}

type MediaKind = "image" | "video" | "audio";

/** `OptionSpec` of `serve/validation.py`. */
interface ModelOption {
  name: string;
  help: string;
  kind: "integer" | "number" | "boolean" | "text" | "texts" | "choice" | "objects";
  default: OptionValue;
  low?: number;
  high?: number;
  choices?: string[];
}

type OptionValue = string | number | boolean | string[] | null;

/** The body of a request to /v1/predict. */
interface PredictBody {
  model: string;
  input?: string | Record<string, string>;
  inputs?: string[];
  options?: Record<string, OptionValue>;
  stream?: boolean;
}

interface ServedOutput {
  text: string;
  token_log_probs?: number[];
}

/** The JSON of an answer, whose keys depend on its kind: `tasks/format.py`. */
interface ServedAnswer {
  error?: string;
  source?: string;
  text?: string;
  outputs?: ServedOutput[];
  label?: string;
  labels?: string[];
  /** Absent for media with many classes, which have `top`. */
  probabilities?: Record<string, number>;
  top?: { label: string; probability: number }[];
  value?: number;
  words?: string[] | { word: string; start: number; end: number; confidence?: number }[];
  tags?: string[];
  gaps?: { word: string; probability: number }[][];
  vector?: number[];
  segments?: unknown[];
}

/** The last request and its answer. */
interface LastRequest {
  /** Text so far of each output that is streamed. */
  pieces: Record<string, string>;
  answer: ServedAnswer | null;
  whole: unknown;
  /** Milliseconds to the first piece, and to the end. */
  first: number | null;
  took: number | null;
  body: PredictBody | null;
  file: File | null;
}

interface ServeState {
  models: ServedModel[];
  model: ServedModel | null;
  file: File | null;
  /** Address under which the page shows the file. */
  url: string | null;
  /** Typed texts by model, and those of the selected model by input. */
  typed: Record<string, Record<string, string>>;
  texts: Record<string, string>;
  options: Record<string, OptionValue>;
  last: LastRequest | null;
  /** Stops the request that runs. */
  stop: AbortController | null;
  version: string;
  /** Message about what is wrong. */
  wrong: string;
  /** Stops the recording; keeps it if the argument is true. */
  recorder: ((keep: boolean) => void) | null;
}

// -- the parts of OpenAPI that the server uses

interface ApiSchema {
  type?: string;
  format?: string;
  description?: string;
  enum?: string[];
  items?: ApiSchema;
  nullable?: boolean;
  properties?: Record<string, ApiSchema>;
  required?: string[];
}

type ApiContent = Record<string, { schema: ApiSchema; example?: Record<string, unknown> }>;

interface ApiOperation {
  summary: string;
  security?: unknown[];
  requestBody?: { content: ApiContent };
  responses: Record<string, { description: string; content?: ApiContent }>;
}
