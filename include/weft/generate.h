/* Generates text with a trained language model (all but bert), token by token.
 *
 *     weft_generator *g;
 *     weft_generator_open("run", NULL, &g);
 *     weft_generator_run(g, "Once", 4, &WEFT_STRUCT(weft_generate_options, .tokens = 100), &done);
 *
 * A generator has a key-value cache, so a token costs one pass over the weights. One thread at a
 * time may use a generator. */
#ifndef WEFT_GENERATE_H
#define WEFT_GENERATE_H

#include <stdbool.h>

#include "weft/job.h"
#include "weft/model.h"
#include "weft/plan.h"
#include "weft/world.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_generator weft_generator;

/* A prompt among several. */
typedef struct weft_prompt {
    const char *text; /* may be NULL if it has no bytes */
    int64_t bytes;
    int64_t tokens; /* largest number of new tokens; 0: that of the options */
    bool has_seed;  /* else the seed of the options */
    uint64_t seed;
    const char *id; /* names it for the caller; NULL: no name */
    bool id_is_number;
} weft_prompt;

typedef struct weft_generator_options {
    size_t struct_bytes;
    int threads;          /* 0: all cores this process may use */
    int64_t memory_bytes; /* refuse models that need more; 0: no limit */
    /* Tokens for which the key-value cache has room, with rotary positions (llama and families
     * like it). For the context of these models the cache may be larger than the model. 0,
     * or more than the model's context: all of its context. */
    int64_t context;
    /* NULL: the tokenizer.json of the checkpoint, or bytes if there is none and the vocabulary is
     * 256. Else see weft_tokenizer_open. */
    const char *tokenizer;
    /* Devices to run on. 0: those of the plan, or one. Without a plan, each device has a share of
     * the heads, of their caches and of the feed-forward layers; with one, the plan says. Its
     * microbatches and optimizer states have no meaning, and axes that split its batch hold
     * replicas. In a world: as many as there are processes. */
    int devices;
    const weft_plan *plan; /* borrowed until the call returns; NULL: none */
    /* The processes to run on, borrowed; each is one device. Then opening and running are
     * collective, all ranks see the files, and rank 0's prompt and numbers count. NULL: all devices
     * are in this process. */
    weft_world *world;
    /* Texts that are made at once, for weft_generator_run_many. 0: the generator is for
     * weft_generator_run. In a world rank 0's counts, as do its prompts. */
    int64_t rows;
    /* Caches get room for the longest of these prompts and its text; each then states its tokens.
     * Borrowed until the call returns. NULL: room for the model's context. */
    const weft_prompt *prompts;
    int64_t prompt_count;
    /* WEFT_F32 (0), or WEFT_BF16: tables, weights of products, caches and activations are bf16,
     * in half the memory. Sums and logits stay f32. In a world rank 0's counts. */
    weft_dtype precision;
    /* Borrowed until the call returns; of this job its memory.*, device.memory and machine count,
     * nothing else: which parameters lie in host memory or on a disk, besides those of the plan.
     * They are copied to device memory for each pass, so rows of several texts share a copy. With
     * memory.offload: auto, weft chooses by the limits and the machine's rates; in a world rank 0
     * does. In a world all ranks have the same entries. NULL: what the plan says. */
    const weft_job *memory;
} weft_generator_options;
WEFTI_ZERO_DEFAULTS(weft_generator_options, weft_generator_defaults)

/** Load a model.
 * @param checkpoint  a run's directory (its newest good step), one step of it, or a Hugging Face
 * directory: config.json, safetensors, and tokenizer.json. A vocabulary of 256 needs no tokenizer:
 * its tokens are bytes.
 * @param out  closed with weft_generator_close
 * @return WEFT_E_NOT_FOUND if the directory has no model; WEFT_E_NO_IMPL for models that do not
 * generate text; WEFT_E_CORRUPT; WEFT_E_SHAPE if the tokenizer does not fit the model;
 * WEFT_E_NOMEM; WEFT_E_NOT_FOUND or WEFT_E_IO for a directory of tier disk that takes no file */
WEFT_API weft_status weft_generator_open(const char *checkpoint,
                                         const weft_generator_options *options,
                                         weft_generator **out) WEFT_CHECKED;
WEFT_API void weft_generator_close(weft_generator *generator); /* NULL is legal */

typedef struct weft_generator_info {
    weft_model_config config;
    const char *path; /* directory of the weights; borrowed from the generator */
    const char *note; /* lines for the user: damaged newer steps of the run that were skipped, and
                         why; moves of the plan that match nothing; what memory.offload: auto moves;
                         borrowed; NULL if none */
    bool bytes;       /* tokens are bytes */
    int64_t tokens;   /* vocabulary of the tokenizer */
    int64_t
        peak_bytes; /* memory of parameters, caches and one pass, of the device that needs most */
    int devices;
    int64_t host_bytes, disk_bytes; /* in tiers below device memory, of the device with most */
} weft_generator_info;
WEFT_API weft_generator_info weft_generator_info_of(const weft_generator *generator);

typedef struct weft_generate_options {
    size_t struct_bytes;
    int64_t tokens; /* largest number of new tokens, 1 or more; fewer if the model ends its text */
    /* What a token is chosen from, in this order, as in transformers. First the penalty: the logits
     * of tokens of the prompt and the text so far are divided by it if positive, else multiplied. 0
     * or 1: none; larger values avoid repetition. */
    double repetition_penalty;
    double temperature; /* divides the logits; 0: always the most likely token */
    int64_t top_k;      /* choose among the k most likely tokens; 0: all */
    double
        top_p; /* among the fewest most likely that make up this share of their sum; 0 or 1: all */
    double min_p;  /* among those at least this fraction as likely as the most likely; 0: all */
    uint64_t seed; /* the same seed gives the same text */
    /* End the text behind the token that completes one of `stop_count` texts, none of them empty.
     * The text holds that token. A stop text may begin in the prompt. May be NULL if the count is
     * 0. All ranks of a world have the same, else WEFT_E_MISMATCH on all. */
    const char *const *stop_texts;
    int64_t stop_count;
    void *context;
    /* Called with the bytes of each new token at once. A token may be a part of a character. May be
     * NULL. */
    void (*text)(void *context, const char *bytes, int64_t count);
    const volatile int
        *stop; /* stop when it becomes nonzero (a signal handler may set it). May be NULL */
} weft_generate_options;
WEFTI_ZERO_DEFAULTS(weft_generate_options, weft_generate_defaults)

typedef struct weft_generation {
    int64_t prompt_tokens;  /* used, with those that the tokenizer puts in front */
    int64_t dropped_tokens; /* of the prompt's beginning, if it is longer than the context */
    int64_t tokens;         /* new tokens */
    bool ended;             /* the model ended its text */
    int64_t stop_text;      /* number of the stop text that ended it; -1: none */
    double prompt_seconds, seconds; /* for the prompt; for the tokens */
} weft_generation;

/** Continue `prompt`. Blocks until the text ends. An empty prompt starts with the tokenizer's start
 * tokens, or with a newline. When the context is full, its last half is kept.
 * @param out  may be NULL; set on success only
 * @return WEFT_E_ARG for options out of range; WEFT_E_NUMERIC if the model's logits are not finite
 */
WEFT_API weft_status weft_generator_run(weft_generator *generator, const char *prompt,
                                        int64_t prompt_bytes, const weft_generate_options *options,
                                        weft_generation *out) WEFT_CHECKED;

/* ---- many prompts ---- */

/** Read prompts from a file of JSON lines, one object a line: "prompt", a text; "id", a text or a
 * whole number, optional; "tokens", 1 or more, optional; "seed", optional. Empty lines are skipped.
 * @param out  freed with weft_prompts_free
 * @return WEFT_E_NOT_FOUND, WEFT_E_IO; WEFT_E_CORRUPT names the line that is wrong, and why, or a
 *   file without prompts; WEFT_E_NO_IMPL: in UTF-16 or UTF-32, where only UTF-8 is read */
typedef struct weft_prompts weft_prompts;
WEFT_API weft_status weft_prompts_read(const char *path, weft_prompts **out) WEFT_CHECKED;
WEFT_API const weft_prompt *weft_prompts_items(const weft_prompts *prompts, int64_t *out_count);
WEFT_API void weft_prompts_free(weft_prompts *prompts); /* NULL is legal */

/* A text that is complete; borrowed by the callback. */
typedef struct weft_generated {
    int64_t prompt; /* its number */
    const char *text;
    int64_t bytes;
    weft_generation generation;
} weft_generated;

/** Continue many prompts, `rows` at a time (weft_generator_options); when a text ends, the next
 * prompt takes its place. Each text is that of weft_generator_run for its prompt alone, except
 * where two tokens are equally likely up to rounding.
 * @param options  for all prompts. `text` must be NULL
 * @param done  called with `options->context`, in the order of the prompts; on all ranks of a
 *   world. May be NULL
 * @return as weft_generator_run; WEFT_E_ARG for a prompt that the caches have no room for, and for
 * a generator that was opened without `rows`; WEFT_E_STOPPED */
WEFT_API weft_status weft_generator_run_many(weft_generator *generator, const weft_prompt *prompts,
                                             int64_t count, const weft_generate_options *options,
                                             void (*done)(void *context,
                                                          const weft_generated *text)) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
