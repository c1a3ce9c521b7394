/* What the verbs share that take a job and a checkpoint: weft eval, weft infer. */
#ifndef WEFT_CLI_INFER_TRAINED_H
#define WEFT_CLI_INFER_TRAINED_H

#include "cli/cli.h"

#include "weft/infer.h"

/* The words JOB.yaml CHECKPOINT key=value..., in any order of the last: of the words without '=',
 * the last one is the checkpoint. CLI_DONE, or CLI_USAGE after a complaint. */
int cli_trained_words(const cli_verb *verb, int count, char **words, cli_job_source *source,
                      const char **out_checkpoint);
/* Loads the job and calls `use` in this process, or as one rank of a launcher's processes, with the
 * world and the rank. Returns its exit code, or CLI_FAILED after a complaint. */
typedef int cli_trained_use(weft_world *world, int rank, const weft_job *job, const void *values);
int cli_trained_run(const cli_job_source *source, const char *program, cli_trained_use *use,
                    const void *values);
/* The same without a job (NULL): exported models. */
int cli_exported_run(cli_trained_use *use, const void *values);
/* The words PLACE key=value..., in any order, of verbs without a job: where parameters lie. Keys
 * are memory.disk.path, memory.disk.size, memory.device, memory.host and device.memory. offload:
 * memory.offload and machine too. planned: a plan says what lies on the disk. *out NULL: there are
 * no keys; else weft_job_free. Leaves the place in words[0]. CLI_DONE, or an exit code after a
 * complaint. */
typedef struct cli_memory_words {
    bool offload, planned;
    const char *place, *hint; /* for messages: what the place is; what one word too many may be */
} cli_memory_words;
int cli_trained_memory(const cli_verb *verb, int count, char **words, cli_memory_words how,
                       weft_job **out);
/* Notes of the library, on standard error. */
void cli_trained_note(void *context, const char *text);

#endif
