/* `weft generate --prompts`: texts of a file of prompts, as JSON lines. */
#include "cli/infer/generate.h"

#include <stdlib.h>
#include <string.h>

enum { TEXTS_AT_ONCE = 32 }; /* without --rows */

typedef struct many {
    const cli_generate_options *values;
    const weft_prompt *prompts; /* with their tokens */
    bool shows;
} many;

static void show(void *context, const weft_generated *text) {
    const many *m = context;
    const weft_generation *done = &text->generation;
    const weft_prompt *p = &m->prompts[text->prompt];
    cli_json json;
    if (!m->shows) return;
    cli_json_begin(&json, stdout);
    if (p->id && p->id_is_number)
        cli_json_integer(&json, "id", strtoll(p->id, NULL, 10));
    else if (p->id)
        cli_json_text(&json, "id", p->id);
    cli_json_bytes(&json, "prompt", p->text, (size_t)p->bytes);
    cli_json_bytes(&json, "text", text->text, (size_t)text->bytes);
    cli_json_integer(&json, "prompt_tokens", done->prompt_tokens);
    cli_json_integer(&json, "dropped_tokens", done->dropped_tokens);
    cli_json_integer(&json, "tokens", done->tokens);
    cli_json_bool(&json, "ended", done->ended);
    cli_json_text(&json, "stop",
                  done->stop_text < 0 ? NULL : m->values->stop.items[done->stop_text]);
    cli_json_end(&json);
}

static int generate(weft_world *world, const weft_plan *plan, const char *checkpoint,
                    const cli_generate_options *values, const weft_prompt *prompts, int64_t count) {
    const int rank = world ? weft_world_rank(world) : 0;
    const int64_t rows = values->rows ? values->rows : TEXTS_AT_ONCE;
    many m = {values, prompts, rank == 0};
    weft_generator *g;
    const weft_generator_options open = WEFT_STRUCT(
        weft_generator_options, .threads = (int)values->threads, .tokenizer = values->tokenizer,
        .devices = (int)values->devices, .plan = plan, .world = world, .precision = values->dtype,
        .memory = values->memory, .rows = count && count < rows ? count : rows, .prompts = prompts,
        .prompt_count = count);
    weft_generate_options how = cli_generate_how(values);
    how.context = &m;
    if (weft_generator_open(checkpoint, &open, &g) < 0) return cli_failed_rank(rank);
    cli_generator_notes(g);
    int code = CLI_DONE;
    if (weft_generator_run_many(g, prompts, count, &how, show) < 0) code = cli_failed_rank(rank);
    weft_generator_close(g);
    return code;
}

int cli_generate_many(weft_world *world, const weft_plan *plan, const char *checkpoint,
                      const cli_generate_options *values) {
    weft_prompt *prompts = NULL;
    int64_t count = 0;
    if (values->file) {
        const weft_prompt *items = weft_prompts_items(values->file, &count);
        prompts = malloc((size_t)count * sizeof *prompts);
        if (!prompts) {
            return cli_complain("no memory for %lld prompts", (long long)count);
        }
        for (int64_t i = 0; i < count; i++) {
            prompts[i] = items[i];
            if (!prompts[i].tokens) prompts[i].tokens = values->tokens;
        }
    }
    int code = generate(world, plan, checkpoint, values, prompts, count);
    free(prompts);
    return code;
}
