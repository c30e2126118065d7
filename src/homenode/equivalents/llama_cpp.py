"""Flags of llama.cpp's `llama-server` and `llama-cli` (b11434, and older ones that are still in use), and what they are
here."""

from __future__ import annotations

from homenode.equivalents.equivalent import AlwaysSo, Equivalent, Meaning, ModelName, NoEffect, NotOffered, Taken
from homenode.kv_types import NAMED, SMALLEST

_AUTO = AlwaysSo("it is the default")
_SAMPLER = NotOffered("requests have it as a field, and SamplingParams in Python (docs/sampling.md)")
_BATCH_THREADS = NoEffect("prompts and answers are computed by the same threads (--threads)")
_MASKS = NotOffered("say which CPUs compute by --cpu-threads-bind, such as 0-15, or --numa-bind-cpus")
_SPECULATION = NoEffect("how much is drafted follows from what is measured, and answers are those without drafts")
_DRAFT_PLACE = NoEffect("a model that drafts is kept and placed as the one that it drafts for")
_LOOKED_UP = Taken("--speculative", "ngram")
_PICTURES = NoEffect("how images are fetched, sized and encoded is said by flags of its own (docs/pictures.md)")
_DEVICES = NoEffect("accelerators are found by themselves; --stage-devices and --layer-split say otherwise")
_EXPERTS = NoEffect(
    "experts are computed where the layer is that they are of: see --stage-devices, --layer-split, --expert-placement"
)
_MEMORY = NoEffect("weights are packed into memory of its own; --packed-cache maps them from a file of that form")
_POSITIONS = NotOffered("how positions are scaled stands in the model's files; --max-model-len says how long it may be")
_ADAPTERS = NotOffered("homenode serves no adapters: merge it into the model and serve that")
_ROUTER = NotOffered("a server has one model: start one for each, and put a router in front")
_PAGES = NoEffect("the page at / has no settings")
_TOOLS = NotOffered("tools are run by who asks; a server runs none")
_PREFIXES = NoEffect("equal beginnings of prompts are found by themselves (--enable-prefix-caching)")
_CORS = NoEffect("what pages may ask is --allowed-origins")
_THINKING = NoEffect("requests say it: reasoning_effort, chat_template_kwargs (docs/tools.md)")
_LOG_FORM = NoEffect("lines of the log have one form, on standard error")
_CONSOLE = NoEffect("a terminal's ways are those of `homenode chat`")
_RECIPES = NotOffered("name the model yourself: MODEL may be an id of the Hub, such as org/name:Q4_K_M")
_OTHER_TOOLS = NotOffered("it is of another of llama.cpp's tools; see `homenode --help` for those there are here")
_SPOKEN = NotOffered("homenode writes texts and makes vectors of them")
_TYPES: dict[str, Meaning] = {
    "bf16": Taken("--kv-cache-dtype", "bf16", "keys and values are of one type"),
    "f32": Taken("--kv-cache-dtype", "f32", "keys and values are of one type"),
    "q8_0": Taken("--kv-cache-dtype", "int8", "keys and values are of one type"),
    "f16": NoEffect("keys and values are bf16, as wide as f16, or f32 with float32 models (--kv-cache-dtype)"),
}
_SMALLER = NotOffered(f"--kv-cache-dtype is {NAMED}: take {SMALLEST}, the smallest there is")

EQUIVALENTS: tuple[Equivalent, ...] = (
    # The model
    Equivalent("-m= -hf= -hfr= --hf-repo=", ModelName()),
    Equivalent("-hff= --hf-file=", NotOffered("name it with its repository: MODEL is org/name:file.gguf")),
    Equivalent("-hft=", NotOffered("set the variable HF_TOKEN, or log in with `hf auth login`")),
    Equivalent("-mu= --model-url= -dr= --docker-repo=", NotOffered("MODEL is a file, a folder or an id of the Hub")),
    Equivalent("--offline", NotOffered("set the variable HF_HUB_OFFLINE=1")),
    Equivalent("-a= --alias=", Taken("--served-model-name")),
    Equivalent("--tags=", NoEffect("a model has names, --served-model-name")),
    Equivalent("--check-tensors", NoEffect("weights are looked at while they are read")),
    Equivalent("--override-kv=", NotOffered("what a model is stands in its file: write another with changed metadata")),
    Equivalent("--lora= --lora-scaled= --lora-init-without-apply", _ADAPTERS),
    Equivalent("--control-vector= --control-vector-scaled= --control-vector-layer-range=...", _ADAPTERS),
    Equivalent(
        "--fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec "
        "--fim-qwen-30b-default --gpt-oss-20b-default --gpt-oss-120b-default --vision-gemma-4b-default "
        "--vision-gemma-12b-default --embd-gemma-default --mtp --dflash --eagle3",
        _RECIPES,
    ),
    # The size of things
    Equivalent("-c= --ctx-size=", Taken("--max-model-len"), values={"0": AlwaysSo("it is the model's own")}),
    Equivalent(
        "-np= --parallel=", Taken("--max-num-seqs"), values={"-1": AlwaysSo("as many run as a step has room for")}
    ),
    Equivalent("-b= --batch-size=", Taken("--max-num-batched-tokens")),
    Equivalent(
        "-ub= --ubatch-size=",
        NoEffect("a step is computed whole, as large as --step-time and --max-num-batched-tokens let it be"),
    ),
    Equivalent("--kv-unified-per-slot=", NoEffect("KV memory is of all sequences, up to --max-model-len tokens each")),
    Equivalent("-kvu --kv-unified", AlwaysSo("KV memory is of all sequences")),
    Equivalent("-no-kvu", NoEffect("KV memory is of all sequences")),
    Equivalent("-cb --cont-batching", AlwaysSo("requests join and leave the batch at any step")),
    Equivalent("-nocb", NotOffered("give --max-num-seqs 1 for one request at a time")),
    Equivalent("-ctk= --cache-type-k= -ctv= --cache-type-v=", _SMALLER, values=_TYPES),
    Equivalent("--keep= --context-shift", NotOffered("an answer ends at --max-model-len; no tokens are dropped")),
    Equivalent("--no-context-shift", AlwaysSo("an answer ends at --max-model-len")),
    Equivalent("-gan= --grp-attn-n= -gaw= --grp-attn-w=", _POSITIONS),
    Equivalent(
        "--rope-scaling= --rope-scale= --rope-freq-base= --rope-freq-scale= --yarn-orig-ctx= --yarn-ext-factor= "
        "--yarn-attn-factor= --yarn-beta-slow= --yarn-beta-fast=",
        _POSITIONS,
    ),
    Equivalent(
        "-ctxcp= --ctx-checkpoints= --swa-checkpoints= -cms= --checkpoint-min-step=",
        NoEffect("states of layers are kept for equal beginnings of prompts (--state-snapshot-interval)"),
    ),
    Equivalent(
        "--swa-full -cram= --cache-ram= --cache-idle-slots --cache-reuse= -sps= --slot-prompt-similarity= -dt= "
        "--defrag-thold= -lcs= --lookup-cache-static= -lcd= --lookup-cache-dynamic=",
        _PREFIXES,
    ),
    Equivalent("--cache-prompt", Taken("--enable-prefix-caching")),
    Equivalent(
        "--slot-save-path= --prompt-cache= --prompt-cache-all --prompt-cache-ro",
        NoEffect("KV is kept in memory alone"),
    ),
    Equivalent("--sleep-idle-seconds=", NoEffect("KV memory that is not used goes back: --kv-cache-release")),
    # Threads, nodes, devices
    Equivalent("-t=", Taken("--threads"), values={"-1": _AUTO, "0": _AUTO}),
    Equivalent("--threads=", values={"-1": _AUTO, "0": _AUTO}),
    Equivalent("-tb= --threads-batch= --threads-http=", _BATCH_THREADS),
    Equivalent("-C= --cpu-mask= -Cr= --cpu-range=", _MASKS),
    Equivalent("-Cb= --cpu-mask-batch= -Crb= --cpu-range-batch=", _BATCH_THREADS),
    Equivalent("--cpu-strict= --cpu-strict-batch=", NoEffect("each thread has a CPU of its own")),
    Equivalent("--prio= --prio-batch= --poll-batch=", NoEffect("threads spin a little and sleep then (--spin-us)")),
    Equivalent("--poll=", NoEffect("how long threads spin is --spin-us, in microseconds")),
    Equivalent(
        "--numa=",
        values={
            "distribute": Taken("--numa", "shard"),
            "isolate": Taken("--numa", "local"),
            "numactl": NoEffect(
                "where another program has placed threads and memory, homenode keeps to that: leave "
                "--numa out, or bind by `homenode run`"
            ),
        },
    ),
    Equivalent(
        "-fa= --flash-attn=",
        NoEffect("attention of devices is --attention-backend; that of CPUs never keeps all scores"),
        values={
            **dict.fromkeys(("on", "auto", "1", "true"), AlwaysSo("attention never keeps all scores")),
        },
    ),
    Equivalent(
        "-ngl= --gpu-layers= --n-gpu-layers= -sm= --split-mode= -ts= --tensor-split= -mg= --main-gpu=", _DEVICES
    ),
    Equivalent(
        "-dev=",
        NotOffered("give --stage-devices cpu, cuda:N or npu:N"),
        values={"none": Taken("--stage-devices", "cpu"), "auto": _AUTO},
    ),
    Equivalent("--list-devices", NotOffered("`homenode host` shows devices")),
    Equivalent("-fit= --fit= -fitt= --fit-target= -fitc= --fit-ctx= -fitp= --fit-print=", _DEVICES),
    Equivalent(
        "-cmoe --cpu-moe -ncmoe= --n-cpu-moe= -ncffn= --n-cpu-ffn= --moe-cache-mib= -ot= --override-tensor=", _EXPERTS
    ),
    Equivalent(
        "-kvo --kv-offload -nkvo --op-offload --no-host --repack -nr",
        NoEffect("weights and KV lie where their layer is computed"),
    ),
    Equivalent("--mmap --mlock --direct-io -dio -ndio --no-direct-io -lm= --load-mode= -lzm= --lazy-mode=", _MEMORY),
    Equivalent("--rpc=", NotOffered("workers on other hosts are started by --executor ray")),
    Equivalent("--warmup", NoEffect("what the first step would do is done at the start")),
    # Sampling
    Equivalent(
        "-n= --predict= --n-predict=",
        Taken("--max-tokens"),
        values={
            "-1": NotOffered("give a number of tokens: --max-tokens"),
            "-2": NotOffered("give a number of tokens: --max-tokens"),
        },
    ),
    Equivalent("-s=", Taken("--seed")),
    Equivalent("--temp=", Taken("--temperature")),
    Equivalent("-r= --reverse-prompt=", Taken("--stop")),
    Equivalent(
        "--min-p= --top-nsigma= --top-n-sigma= --xtc-probability= --xtc-threshold= --typical= --typical-p= "
        "--repeat-last-n= --repeat-penalty= --presence-penalty= --frequency-penalty= --dry-multiplier= --dry-base= "
        "--dry-allowed-length= --dry-penalty-last-n= --dry-sequence-breaker= --adaptive-target= --adaptive-decay= "
        "--dynatemp-range= --dynatemp-exp= --mirostat= --mirostat-lr= --mirostat-ent= -l= --logit-bias=",
        _SAMPLER,
    ),
    Equivalent("--samplers= --sampler-seq= --sampling-seq=", NotOffered("samplers have one order: docs/sampling.md")),
    Equivalent(
        "--grammar= --grammar-file= -j= --json-schema= -jf= --json-schema-file=",
        NotOffered("requests have it as a field: grammar, json_schema, response_format (docs/structured-output.md)"),
    ),
    Equivalent("-bs --backend-sampling", NoEffect("tokens are drawn where the last layer is computed")),
    # The server
    Equivalent("--reuse-port", NotOffered("several processes answer on one port by --api-server-count")),
    Equivalent("--path= --api-prefix=", NotOffered("the path under which a reverse proxy shows it is --root-path")),
    Equivalent("--cors-origins=", Taken("--allowed-origins")),
    Equivalent("--cors-methods= --cors-headers= --cors-credentials", _CORS),
    Equivalent(
        "--ui-config= --webui-config= --ui-config-file= --webui-config-file= --ui-mcp-proxy --webui-mcp-proxy",
        _PAGES,
    ),
    Equivalent("--webui", Taken("--ui")),
    Equivalent("--tools= --tools-runtime= --mcp-servers-config= --mcp-servers-json= -ag --agent", _TOOLS),
    Equivalent("-no-ag", AlwaysSo("a server runs no tools")),
    Equivalent("--embedding --embeddings --rerank --reranking", Taken("--runner", "pooling")),
    Equivalent(
        "--pooling=",
        values={
            "none": NotOffered("a text has one vector: --pooling mean, cls or last"),
            "rank": Taken("--runner", "pooling"),
        },
    ),
    Equivalent("--embd-normalize=", NoEffect("vectors have the length 1 unless a request says normalize")),
    Equivalent("--ssl-key-file=", Taken("--ssl-keyfile")),
    Equivalent("--ssl-cert-file=", Taken("--ssl-certfile")),
    Equivalent("-to= --timeout=", NoEffect("see --request-read-timeout, --write-timeout and --request-timeout")),
    Equivalent("--sse-ping-interval=", Taken("--sse-keep-alive"), values={"-1": Taken("--sse-keep-alive", "0")}),
    Equivalent("--metrics", AlwaysSo("figures are under /metrics")),
    Equivalent("--slots --props", NoEffect("figures are under /metrics, and /v1/models has what the model is")),
    Equivalent("--models-dir= --models-preset= --models-max= --models-autoload", _ROUTER),
    Equivalent("--spm-infill", NoEffect("the order is the one that the model was made for")),
    # Chat
    Equivalent("--jinja", AlwaysSo("templates are jinja2's")),
    Equivalent("--no-jinja", NotOffered("templates are jinja2's: --chat-template FILE stands in for the model's")),
    Equivalent("--chat-template-file=", Taken("--chat-template")),
    Equivalent("--chat-template-kwargs=", _THINKING),
    Equivalent(
        "-rea= --reasoning= --reasoning-effort= --reasoning-budget= --reasoning-budget-message= --reasoning-preserve",
        _THINKING,
    ),
    Equivalent(
        "--reasoning-format=",
        values={
            "deepseek": Taken("--reasoning-format", "auto"),
            "deepseek-legacy": NotOffered("thoughts are told apart (auto) or left in the content (none)"),
        },
    ),
    Equivalent(
        "--skip-chat-parsing", Taken("--reasoning-format", "none", "calls of tools are understood all the same")
    ),
    Equivalent("--prefill-assistant", AlwaysSo("requests say it: continue_final_message")),
    Equivalent("-sp --special", NoEffect("requests say it: skip_special_tokens")),
    # One prompt
    Equivalent("-p=", Taken("--prompt")),
    Equivalent("-sys= --system-prompt=", Taken("--system")),
    Equivalent(
        "-f= --file= -bf= --binary-file= -sysf= --system-prompt-file=",
        NotOffered('give the text of a file: --prompt "$(cat FILE)"'),
    ),
    Equivalent("-cnv --conversation", Taken("--chat", note="`homenode chat` goes on with a conversation")),
    Equivalent("-no-cnv --no-conversation --no-display-prompt", AlwaysSo("a text is continued, and it alone is shown")),
    Equivalent("-st --single-turn", AlwaysSo("`homenode generate` answers once")),
    Equivalent("-e --escape --display-prompt --verbose-prompt -ptc= --print-token-count=", _CONSOLE),
    Equivalent("--no-escape --simple-io --no-perf --no-show-timings", AlwaysSo("a text is taken and printed as it is")),
    Equivalent("--perf --show-timings", NoEffect("timings are in the answer to --json")),
    Equivalent("-i --interactive -if --interactive-first -mli --multiline-input -co= --color=", _CONSOLE),
    Equivalent("--in-prefix-bos --in-prefix= --in-suffix=", NotOffered("write it into --prompt")),
    # The log
    Equivalent("-v --log-verbose", Taken("--verbose")),
    Equivalent("--log-disable", Taken("--log-level", "error")),
    Equivalent(
        "-lv= --verbosity= --log-verbosity=",
        Taken("--log-level", "debug"),
        values={
            "0": Taken("--log-level", "error"),
            "1": Taken("--log-level", "error"),
            "2": Taken("--log-level", "warning"),
            "3": Taken("--log-level", "info"),
        },
    ),
    Equivalent("--log-file= --log-prompts-dir=", NotOffered("the log is on standard error: 2> FILE")),
    Equivalent("--log-jsonl --log-colors= --log-prefix --log-timestamps", _LOG_FORM),
    # Pictures and sound
    Equivalent("-mm= --mmproj=", Taken("--mmproj")),
    Equivalent("--mmproj-auto", AlwaysSo("a file with mmproj in its name beside the model is found")),
    Equivalent(
        "-mmdev= --mmproj-device= -mmu= --mmproj-url= --mmproj-offload --image= --audio= "
        "--video= "
        "--image-min-tokens= --image-max-tokens= --mtmd-batch-max-tokens= --video-fps= --video-timestamp-interval= "
        "--video-ffmpeg-dir=",
        _PICTURES,
    ),
    Equivalent("--no-mmproj", Taken("--mmproj", "off")),
    # Speculation
    Equivalent(
        "--spec-type=",
        NotOffered("give --speculative off, auto, ngram, draft or mtp"),
        values={
            "none": Taken("--speculative", "off"),
            "ngram-simple": _LOOKED_UP,
            "ngram-map-k": _LOOKED_UP,
            "ngram-map-k4v": _LOOKED_UP,
            "ngram-mod": _LOOKED_UP,
            "ngram-cache": _LOOKED_UP,
            "draft-simple": Taken("--speculative", "draft"),
            "draft-mtp": Taken("--speculative", "mtp"),
        },
    ),
    Equivalent("--nextn", Taken("--speculative", "mtp")),
    Equivalent("--spec-default", AlwaysSo("tokens are drafted where it pays unless --speculative says otherwise")),
    Equivalent(
        "--spec-draft-model= -md= --model-draft= --spec-draft-hf= -hfd= -hfrd= --hf-repo-draft=",
        Taken("--speculative-model"),
    ),
    Equivalent("--draft= --draft-n= --draft-max= --spec-draft-n-max=", Taken("--num-speculative-tokens")),
    Equivalent(
        "--spec-draft-threads= -td= --threads-draft= --spec-draft-threads-batch= -tbd= --threads-batch-draft= "
        "--spec-draft-cpu-mask= -Cd= --cpu-mask-draft= --spec-draft-cpu-range= -Crd= --cpu-range-draft= "
        "--spec-draft-cpu-strict= --cpu-strict-draft= --spec-draft-prio= --prio-draft= --spec-draft-poll= "
        "--poll-draft= --spec-draft-cpu-mask-batch= -Cbd= --cpu-mask-batch-draft= --spec-draft-cpu-range-batch= "
        "-Crbd= --cpu-range-batch-draft= --spec-draft-cpu-strict-batch= --cpu-strict-batch-draft= "
        "--spec-draft-prio-batch= --prio-batch-draft= --spec-draft-poll-batch= --poll-batch-draft= "
        "--spec-draft-type-k= -ctkd= --cache-type-k-draft= --spec-draft-type-v= -ctvd= --cache-type-v-draft= "
        "--spec-draft-override-tensor= -otd= --override-tensor-draft= --spec-draft-cpu-moe -cmoed --cpu-moe-draft "
        "--spec-draft-n-cpu-moe= --spec-draft-ncmoe= -ncmoed= --n-cpu-moe-draft= --spec-draft-device= -devd= "
        "--device-draft= --spec-draft-ngl= -ngld= --gpu-layers-draft= --n-gpu-layers-draft=",
        _DRAFT_PLACE,
    ),
    Equivalent(
        "--spec-draft-n-min= --spec-synth-len= --spec-synth-rates= --spec-draft-p-split= --draft-p-split= "
        "--spec-draft-p-min= --draft-p-min= --spec-draft-backend-sampling --spec-draft-sampling= "
        "--spec-ngram-mod-n-min= --spec-ngram-mod-n-max= --spec-ngram-mod-n-match= --spec-ngram-simple-size-n= "
        "--spec-ngram-simple-size-m= --spec-ngram-simple-min-hits= --spec-ngram-map-k-size-n= "
        "--spec-ngram-map-k-size-m= --spec-ngram-map-k-min-hits= --spec-ngram-map-k4v-size-n= "
        "--spec-ngram-map-k4v-size-m= --spec-ngram-map-k4v-min-hits= --draft-min= --draft-n-min= "
        "--spec-ngram-size-n= --spec-ngram-size-m= --spec-ngram-min-hits=",
        _SPECULATION,
    ),
    # Other tools of llama.cpp
    Equivalent(
        "-cl --cache-list --completion-bash -ns= --sequences= --server-base= --chunks= --in-file= --hellaswag "
        "--hellaswag-tasks= "
        "--winogrande --winogrande-tasks= --multiple-choice --multiple-choice-tasks= --kl-divergence "
        "--save-all-logits= --kl-divergence-base= --ppl-stride= --ppl-output-type= --attention= --context-file= "
        "--chunk-size= --chunk-separator= --junk= --pos= -o= --output= --output-file= -ofreq= --output-frequency= "
        "--output-format= --save-frequency= --process-output --ppl --chunk= --from-chunk= --show-statistics "
        "--parse-special --ids --stdin --no-bos --no-parse-special --show-count -pps -tgs -npp= -ntg= -npl= "
        "--embd-output-format= --embd-separator= --cls-separator= --positive-file= --negative-file= --pca-batch= "
        "--pca-iter= --method= -lr= --learning-rate= -lr-min= --learning-rate-min= -decay-epochs= "
        "--learning-rate-decay-epochs= -wd= --weight-decay= -val-split= --val-split= -epochs= --epochs= -opt= "
        "--optimizer= --check --save-logits --logits-output-dir= --tensor-filter=",
        _OTHER_TOOLS,
    ),
    Equivalent(
        "--tts-lang= --tts-speaker-file= --diffusion-steps= --diffusion-visual --diffusion-eps= "
        "--diffusion-algorithm= --diffusion-alg-temp= --diffusion-block-length= --diffusion-cfg-scale= "
        "--diffusion-add-gumbel-noise",
        _SPOKEN,
    ),
)
