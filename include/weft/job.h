/* A training job: all settings of one run, read from a YAML file and `key=value` overrides.
 *
 * One table (src/job/keys.def) holds the keys, their defaults and their meaning. The parser, the
 * printed form and docs/reference/job-file.md come from it. A loaded job is complete, except for
 * sizes that only the data or a model directory can give: those are 0. */
#ifndef WEFT_JOB_H
#define WEFT_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "weft/model.h"
#include "weft/plan.h"
#include "weft/search.h"
#include "weft/session.h"
#include "weft/status.h"
#include "weft/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Choices, with their spelling in a job. Families and optimizers: weft/model.h, weft/session.h. */
#define WEFT_FORMAT_LIST(X)                                                                        \
    X(TEXT, "text")                                                                                \
    X(JSONL, "jsonl") X(RAW, "raw") X(TOKENS, "tokens") X(IDX, "idx") X(NPY, "npy")
#define WEFT_SCHEDULE_LIST(X)                                                                      \
    X(CONSTANT, "constant") X(LINEAR, "linear") X(COSINE, "cosine") X(STEP, "step")

#define WEFT_CHOICE(name, text) WEFT_FORMAT_##name,
typedef enum weft_format { WEFT_FORMAT_LIST(WEFT_CHOICE) WEFT_FORMATS } weft_format;
#undef WEFT_CHOICE
#define WEFT_CHOICE(name, text) WEFT_SCHEDULE_##name,
typedef enum weft_schedule_kind {
    WEFT_SCHEDULE_LIST(WEFT_CHOICE) WEFT_SCHEDULES
} weft_schedule_kind;
#undef WEFT_CHOICE

/** The text of a choice; "?" for a value outside the enum. Static storage. */
WEFT_API const char *weft_format_text(weft_format format);
WEFT_API const char *weft_optimizer_text(weft_optimizer_kind optimizer);
WEFT_API const char *weft_schedule_text(weft_schedule_kind schedule);

/* Entries of a list or mapping, in order, as texts. */
typedef struct weft_job_pair {
    const char *key, *value;
    const char *where; /* "job.yaml:14:5" */
} weft_job_pair;
typedef struct weft_job_pairs {
    const weft_job_pair *items;
    int64_t count;
} weft_job_pairs;

/* Texts are never NULL; "" means not given. As in weft_lora; 0: from the model's files. */
typedef struct weft_job_lora {
    int64_t rank;
    double alpha, dropout;
    weft_job_pairs targets;
    const char *from; /* directory of adapters, as PEFT writes them */
} weft_job_lora;

typedef struct weft_job_model {
    weft_family family; /* WEFT_FAMILIES: the family in model.from or model.config */
    const char *from;   /* directory of a Hugging Face model; then sizes of 0 come from there */
    const char *config; /* config.json or its directory: the same, but the weights are new */
    /* as in weft_model_config; 0: from model.from, or the family's own */
    int64_t layers, hidden, heads, kv_heads, head_dim, window, ffn, context;
    int64_t vocab, classes, image[3]; /* [channels, height, width]; 0: from the data */
    int64_t patch;
    bool tied;                     /* llama and families like it */
    bool attention_bias, mlp_bias; /* llama */
    double dropout;                /* below 0: from model.from */
    double norm_eps, rope_theta;
    int64_t experts, experts_per_token;
    double capacity_factor, aux_loss; /* below 0: from model.from, or the family's own */
    weft_job_lora lora;
} weft_job_model;

typedef enum weft_bad_lines { WEFT_BAD_LINES_REFUSE, WEFT_BAD_LINES_SKIP } weft_bad_lines;

typedef struct weft_job_data {
    weft_format format;
    const char *path, *labels;
    const char *validation;     /* a path, or "" when a fraction is split off */
    double validation_fraction; /* 0: none */
    const char *validation_labels;
    const char *tokenizer; /* "bytes" or a tokenizer.json; "": that of model.from, or bytes */
    const char *field;     /* jsonl: the member that holds the text */
    weft_bad_lines bad_lines;
} weft_job_data;

typedef struct weft_job_optimizer {
    weft_optimizer_kind name;
    double lr, betas[2], eps, weight_decay, momentum, initial_accumulator;
    weft_job_pairs decay;               /* pattern -> "true" or "false" */
    const weft_decay_rule *decay_rules; /* the same, for weft_optimizer */
} weft_job_optimizer;

typedef struct weft_job_schedule {
    weft_schedule_kind name;
    int64_t warmup; /* steps */
    double final;   /* fraction of lr at the last step: linear, cosine */
    int64_t every;  /* steps between multiplications by factor: step */
    double factor;
} weft_job_schedule;

#define WEFT_PRODUCTS_LIST(X) X(AUTO, "auto") X(F8, "f8")
/** The arithmetic of products with weights: that of train.precision, or, for predictions, operands
 * in 8 bits. */
#define WEFT_ROW(name, text) WEFT_PRODUCTS_##name,
typedef enum weft_products { WEFT_PRODUCTS_LIST(WEFT_ROW) WEFT_PRODUCTS } weft_products;
#undef WEFT_ROW

typedef struct weft_job_train {
    int64_t steps, batch,
        accumulate;       /* batch: samples per step over all devices; accumulate divides it */
    weft_dtype precision; /* WEFT_F32 or WEFT_BF16 */
    uint64_t seed;
    weft_job_optimizer optimizer;
    weft_job_pairs frozen; /* pattern -> "true" or "false" */
    weft_job_schedule schedule;
    double clip;                      /* global norm; 0: none */
    const char *log;                  /* JSON-lines file */
    const char *tensorboard;          /* directory for event files */
    int64_t eval_every, eval_batches; /* 0: only at the end; 0: all of the validation data */
    int64_t stop_after;               /* validations without a lower loss; 0: all steps */
    int64_t check_replicas;           /* steps; 0: never */
    weft_products products;
    weft_rows rows;
    weft_tier master; /* DEVICE or HOST: as in weft_plan_master */
} weft_job_train;

typedef struct weft_job_checkpoint {
    const char *dir;
    int64_t every, keep;   /* 0: only at the end */
    double seconds;        /* in place of every; 0: not by time */
    bool best;             /* the step with the lowest validation loss stays, too */
    int64_t keep_minutes;  /* of older ones, one for each so many minutes stays; 0: none */
    bool sliced;           /* each process saves its own slices in a folder of its own */
    const char *key;       /* of encrypted checkpoints: a file, or env:NAME; "": none */
    bool on_error;         /* save the last complete step when a later one fails */
    const char *stop_file; /* JSON that asks the run to end; "": none */
    bool resume;
    bool other_data; /* a resume may read other data, or use another tokenizer */
} weft_job_checkpoint;

typedef struct weft_job_recovery {
    bool enabled;  /* steps can be made again until all ranks can finish them */
    int64_t buddy; /* ranks that keep copies of a rank's state: 0 or 1 */
    bool elastic;  /* the run goes on with fewer ranks when one does not come back */
    int64_t min;   /* ranks with which it may go on */
    int64_t max;   /* ranks that it may grow to; 0: those that it began with */
    double wait;   /* seconds for a process that takes an empty seat */
} weft_job_recovery;

typedef struct weft_job_device {
    int64_t threads;       /* 0: all cores */
    int64_t memory_bytes;  /* 0: the machine's memory */
    double memory_percent; /* of the machine's memory, in place of bytes; 0: not set */
} weft_job_device;

/* Limits of memory, and what lies in a tier below device memory, as in weft_plan_offload. */
typedef struct weft_job_memory {
    int64_t device_bytes; /* of the device memory of one device, programs not counted; 0: not set */
    double device_percent; /* of the machine's memory, in place of bytes; 0: not set */
    int64_t host_bytes;    /* of all else that weft holds for one device: tier host, programs, and
                              an equal part of the batches; 0: not set */
    double host_percent;
    weft_job_pairs offload; /* match -> what and tier, "optimizer host"; of auto: "auto" -> "" */
    struct {
        const char *path;   /* directory of the file of tier disk; "": none */
        int64_t size_bytes; /* largest file of one device; 0: no limit */
        double
            size_percent; /* of the free space when a run begins, in place of bytes; 0: not set */
    } disk;
} weft_job_memory;

typedef enum weft_job_gradients {
    WEFT_GRADIENTS_MEAN,
    WEFT_GRADIENTS_SUM,
} weft_job_gradients;

typedef struct weft_job_sharding {
    int64_t level, threshold, shard_size; /* threshold in bytes; as in weft_plan_optimizer */
} weft_job_sharding;

typedef struct weft_job_pipeline {
    int64_t stages, microbatches;
    weft_schedule schedule;
    int64_t virtual_stages;
    weft_job_pairs stage_of; /* match -> stage */
    weft_job_pairs meshes;   /* for each stage "dp=3 tp=2"; keys are "" */
} weft_job_pipeline;

typedef struct weft_job_recompute {
    weft_recompute mode;
    weft_job_pairs cells; /* patterns are keys, values "" */
    bool communication;
} weft_job_recompute;

typedef struct weft_job_fusion {
    weft_fusion_mode mode;
    const char *config; /* "": none; bytes "26214400", or ends "[20, 35]" */
} weft_job_fusion;

typedef struct weft_job_dataset {
    weft_dataset kind;
    weft_job_pairs inputs; /* name -> layout, if each input has its own */
    const char *cuts;      /* parts of each input in turn, "((1,1,1,4),(1,))"; NULL or "": none */
} weft_job_dataset;

/* AUTO: a search makes the plan (weft/search.h), once the model is known. */
#define WEFT_JOB_MODE_LIST(X) WEFT_PARALLEL_MODE_LIST(X) X(AUTO, "auto")
#define WEFT_ROW(name, text) WEFT_JOB_MODE_##name,
typedef enum weft_job_mode { WEFT_JOB_MODE_LIST(WEFT_ROW) WEFT_JOB_MODES } weft_job_mode;
#undef WEFT_ROW
typedef enum weft_cost_phase { WEFT_PHASE_TRAINING, WEFT_PHASE_INFERENCE } weft_cost_phase;

/* The fields of weft_mindspore_model. */
typedef struct weft_job_cost {
    weft_cost_model model;
    double alpha, beta, gamma, threshold, constant, bias;
    int64_t capacity;
    weft_cost_phase phase;
} weft_job_cost;

/* How the model is split over devices; weft_job.plan is made from it. */
typedef struct weft_job_parallel {
    const char *plan;  /* a plan file, which replaces everything below except links and devices */
    const char *links; /* a file of measured links; "": none, or the plan's */
    int64_t devices;
    weft_job_pairs mesh; /* axis -> size */
    weft_job_mode mode;
    weft_search search; /* of mode auto, like all until `strategies` */
    const char *fix;    /* constraints of the joint search */
    int64_t evaluations;
    double search_seconds;
    const char *constraints; /* `fix`, and the keys that the job sets */
    weft_job_cost cost;
    weft_search_rules algorithm;
    weft_job_pairs strategies, tensors; /* match -> split; match -> layout */
    weft_job_sharding optimizer;
    weft_job_pipeline pipeline;
    int64_t accumulate,
        copies; /* accumulate: the same as train.accumulate, pipeline.microbatches */
    weft_job_recompute recompute;
    weft_job_gradients gradients;
    struct {
        weft_job_fusion allreduce, allgather, reducescatter;
    } fusion;
    weft_job_dataset dataset;
    bool overlap;
    weft_job_pairs place;  /* match -> "host" or "device", as in weft_op_place */
    weft_job_pairs server; /* match -> "sync", as in weft_plan_server */
} weft_job_parallel;

typedef struct weft_job {
    const char *machine; /* a machine (docs/reference/format-machine.md), by which strategies and
                            communication are chosen; "": assumed rates and links */
    weft_job_model model;
    weft_job_data data;
    weft_job_train train;
    weft_job_checkpoint checkpoint;
    weft_job_recovery recovery;
    weft_job_memory memory;
    weft_job_device device;
    weft_job_parallel parallel;
    const weft_plan *plan; /* made from `parallel`; NULL if `parallel` describes one device */
    const char *text;      /* the job as a job file that reads back equal */
    const void *origin;    /* private: what it was read from; NULL: nothing */
    /* The caller may set it: called while a report (weft_job_report, weft_job_plan,
     * weft_job_program_text) builds programs, with the number of ranks that are done. */
    struct {
        void (*call)(void *context, int done, int of);
        void *context;
    } progress;
} weft_job;

/** Read a job file, apply the overrides in order, fill in defaults, check.
 * @param path       a YAML file; NULL or "": only defaults and overrides
 * @param overrides  `count` arguments "train.steps=500", values as in the file
 * ("train.optimizer.betas=[0.9, 0.95]")
 * @param out        freed with weft_job_free
 * @return WEFT_E_ARG for any error in it, with file, line and the valid values; WEFT_E_NOT_FOUND,
 * WEFT_E_IO; WEFT_E_NO_IMPL for a file if this build has no libyaml; WEFT_E_NOMEM */
WEFT_API weft_status weft_job_load(const char *path, const char *const *overrides, int count,
                                   weft_job **out) WEFT_CHECKED;
/** As weft_job_load, with the file's text in memory. `name` stands for the file in messages. */
WEFT_API weft_status weft_job_parse(const char *name, const char *text, int64_t bytes,
                                    const char *const *overrides, int count,
                                    weft_job **out) WEFT_CHECKED;
WEFT_API void weft_job_free(weft_job *job); /* NULL is legal */
/** What a process with this job is about to run, as weft_world_options.identity takes it: the
 * program, the keys that ranks have in common, and size and samples of a data file. Reads at most
 * 64 KiB of that; a file that cannot be read is left out.
 * @param program  its name, "weft train"
 * @param out  freed with weft_text_free */
WEFT_API weft_status weft_job_identity(const weft_job *job, const char *program,
                                       char **out) WEFT_CHECKED;

/** Translate options of Megatron-LM or torchtitan to a job file: model, training and the split over
 * devices.
 * @param name      stands for the text in messages
 * @param text      [bytes] a shell script or a list of options; variables that it sets are
 * replaced. Or a configuration of torchtitan: Python that imports from it, of which literals are
 * read
 * @param variables "NAME=value" that a script finds, as its environment; the last one is NULL.
 *   NULL: none
 * @param devices   number of devices; 0: as the options say (torchrun's nnodes, nproc_per_node)
 * @param out_job   YAML without data.path; free with weft_text_free
 * @param out_notes a line for each option that a job cannot express, "" for none; weft_text_free
 * @return WEFT_E_ARG for options that contradict each other, with line and option; WEFT_E_NO_IMPL
 * for a model that is no family of weft; WEFT_E_NOMEM */
WEFT_API weft_status weft_job_import(const char *name, const char *text, int64_t bytes,
                                     const char *const *variables, int devices, char **out_job,
                                     char **out_notes) WEFT_CHECKED;
#define WEFT_SYSTEM_LIST(X) X(MEGATRON, "megatron") X(TORCHTITAN, "torchtitan")
#define WEFT_CHOICE(name, text) WEFT_SYSTEM_##name,
typedef enum weft_system { WEFT_SYSTEM_LIST(WEFT_CHOICE) WEFT_SYSTEMS } weft_system;
#undef WEFT_CHOICE
/** Translate a job and its completed plan to another system's options: Megatron-LM's command line,
 * one option a line, or a configuration of torchtitan in Python. `out_notes`: a line for each part
 * of the job that the system cannot express, "" for none. Free both with weft_text_free. Reads the
 * data if the model's sizes come from it. WEFT_E_NO_IMPL if the system has no such model. */
WEFT_API weft_status weft_job_export(const weft_job *job, weft_system system, char **out_options,
                                     char **out_notes) WEFT_CHECKED;

/* A row of the table of keys. Static storage. */
typedef struct weft_job_key {
    const char *path;         /* "train.optimizer.lr" */
    const char *type;         /* "number", "whole number", "text", "path", "choice"... */
    const char *default_text; /* as written in a file; "auto": depends on other keys */
    const char *help;
    const char *const *words; /* choices: NULL-terminated; else NULL */
    double min, max;          /* numbers: inclusive; both 0: anything of the type */
} weft_job_key;

/** All keys, in the order of the printed form. */
WEFT_API const weft_job_key *weft_job_keys(int *out_count);

/** The path of the key that a user most likely means by `word`: its last word ("lr"), a name in
 * other systems ("learning_rate"), or a near spelling. Case does not count, nor does '-' for '_'.
 * NULL if no key is near. Static storage. */
WEFT_API const char *weft_job_near_key(const char *word);

#ifdef __cplusplus
}
#endif
#endif
