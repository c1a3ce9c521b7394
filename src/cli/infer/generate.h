/* `weft generate`: one text, or many. */
#ifndef WEFT_CLI_INFER_GENERATE_H
#define WEFT_CLI_INFER_GENERATE_H

#include "cli/cli.h"
#include "weft/generate.h"

typedef struct cli_generate_options {
    const char *prompt, *prompts, *tokenizer, *plan, *key, *precision;
    int64_t tokens, top_k, seed, threads, devices, rows;
    double temperature, top_p, min_p, repetition_penalty;
    cli_texts stop;
    bool json;
    weft_dtype dtype; /* of --precision */
    /* Of --prompts, read before the processes meet. NULL: another rank has it. */
    weft_prompts *file;
    weft_job *memory; /* of the words with keys; NULL: there are none */
} cli_generate_options;

void cli_generator_notes(const weft_generator *g); /* to stderr */
/* What the options say about tokens. */
weft_generate_options cli_generate_how(const cli_generate_options *values);
/* many.c: the prompts of a file. Of several processes, rank 0 reads it and shows the texts. Returns
 * the exit code. */
int cli_generate_many(weft_world *world, const weft_plan *plan, const char *checkpoint,
                      const cli_generate_options *values);

#endif
