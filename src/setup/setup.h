/* From a job to a model on its devices: configuration, data, plan, graphs and session.
 *
 * A wefti_setup is a process, as it stays for all sizes of its world. A wefti_built is what belongs
 * to one size; a run whose world takes another size builds a second one, and goes on with that.
 * Runs, models in use and reports on jobs have one each. */
#ifndef WEFTI_SETUP_SETUP_H
#define WEFTI_SETUP_SETUP_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/side_files.h"
#include "program/limit.h"
#include "session/party.h"
#include "session/save/save.h"
#include "session/session.h"
#include "setup/objective.h"
#include "tokenizer/special.h"
#include "topo/model.h"
#include "weft/model.h"
#include "weft/predict.h"
#include "weft/search.h"
#include "weft/train.h"

/* What a process that takes the place of a rank gets from a rank that lives. */
typedef struct wefti_briefing {
    weft_model_config config;
    weft_bf16_compute bf16;
    char *plan; /* text of the plan that was searched; NULL: of the job */
    bool anew;  /* all ranks set up: their plan is a new one */
} wefti_briefing;

typedef struct wefti_setup {
    wefti_party party;
    wefti_side_files side; /* the files beside the model, which each checkpoint holds */
    bool encrypts;         /* checkpoints are encrypted, with `key` */
    wefti_key key;
    const wefti_briefing *briefing; /* of a newcomer, while it sets up; else NULL */
    /* Each may be NULL: no call. */
    void (*note)(void *context, const char *text);
    void (*opens)(void *context, bool begins); /* around the opening of data */
    /* Rank 0: the plan that the run has recorded; *out NULL: none that counts. */
    weft_status (*recorded)(void *context, weft_plan **out);
    void *context;
} wefti_setup;
/* wefti_party_join, with a note on networks that anyone may read. */
weft_status wefti_setup_join(wefti_setup *s, weft_world *world) WEFT_CHECKED;
void wefti_setup_note(const wefti_setup *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void wefti_setup_note_lines(const wefti_setup *s, char *lines); /* one each; frees `lines` */
void wefti_setup_close(wefti_setup *s);                         /* wipes the key */

typedef struct wefti_built_model {
    weft_model_config config;
    const wefti_objective *objective;
    weft_graph *graph, *eval_graph; /* of training; of validation or use */
    int eval_program;               /* number in the session; 0: no validation */
    weft_bf16_compute bf16;
    int32_t mask_token; /* of masked language models */
} wefti_built_model;

/* How a step's samples are divided. */
typedef struct wefti_built_batch {
    int64_t micro;        /* samples of a microbatch */
    int64_t microbatches; /* of a step, interleaved ones included */
} wefti_built_batch;

typedef struct wefti_built {
    wefti_setup *setup;
    const weft_job *job;   /* for this size of the world */
    weft_job *resized_job; /* `job`, if it is another one than given */
    weft_data *data;
    weft_session *session;
    weft_plan *searched; /* once the graph is built: of a search, or of the run's record; NULL: the
                            job's plan counts */
    char *search_notes;  /* of a search other than the joint one, and of memory.offload: auto, a
                            line each; NULL: none */
    weft_search_report *report; /* of the joint search on this rank; NULL: none */
    wefti_limits limits;        /* of a device on this machine */
    int64_t disk_bytes;         /* largest file of a device on the disk, 0: no limit */
    wefti_built_model model;
    wefti_built_batch batch;
    wefti_saved_list saved; /* the saver's list, while the run tries another size */
} wefti_built;

/* ---- built.c: all but the session, and then the session ---- */

weft_status wefti_built_prepare(wefti_built *b) WEFT_CHECKED;
weft_status wefti_built_build(wefti_built *b) WEFT_CHECKED;
void wefti_built_close(wefti_built *b);
/* The model's configuration; opens data into b->data when sizes depend on it. */
weft_status wefti_built_configure(wefti_built *b) WEFT_CHECKED;
/* After that, on all ranks: the data, unless they are open, and what depends on them. */
weft_status wefti_built_open_data(wefti_built *b) WEFT_CHECKED;
/* Devices of the job, which share its batch. */
int32_t wefti_built_devices(const wefti_built *b);
/* Devices that share this machine: of this process, or of its host's processes. */
int64_t wefti_built_sharing(const wefti_built *b);
/* The limits that the job sets for a device on this machine. held: of b. */
wefti_limits wefti_built_limits(const wefti_built *b);
/* A device's share of the machine's memory, or of the limit of its cgroup. */
int64_t wefti_built_share(const wefti_built *b);
/* limits: of the job. Without one of device memory, the device's share of the machine's memory. */
void wefti_built_limit_memory(wefti_built *b);
/* limits.held: once the graph to train is built, a device's part of the batches that are prepared
 * ahead: of a training with its validation, or of passes alone. */
void wefti_built_hold_batches(wefti_built *b, bool trains);
/* Once the session has its programs: if the job does not limit host memory, refuses what the
 * machine has no memory for beside device memory. Collective in a world, so not for a newcomer,
 * which builds while the others wait to meet its session. */
weft_status wefti_built_fits_machine(const wefti_built *b) WEFT_CHECKED;
/* After that: the graph to train. Refuses a plan that was made for another model. */
weft_status wefti_built_graph(wefti_built *b) WEFT_CHECKED;
/* The graph to train with `samples` in a microbatch, with the job's frozen parameters. */
weft_status wefti_built_graph_of(const wefti_built *b, const weft_model_config *config,
                                 int64_t samples, weft_graph **out) WEFT_CHECKED;
/* All graphs of a training: with validation data, model.eval_graph too. Then decides what
 * memory.offload: auto moves. Collective in a world. */
weft_status wefti_built_graphs(wefti_built *b) WEFT_CHECKED;
weft_session_options wefti_built_options(const wefti_built *b);
/* For forward passes: without optimizer and recovery, with one microbatch. */
weft_session_options wefti_built_forward_options(const wefti_built *b);

/* ---- disk.c: before the data are read and a plan is searched; collective ---- */

/* Refuses a directory of tier disk that takes no file, if the job uses that tier. Sets disk_bytes.
 * `trains` false: for forward passes. */
weft_status wefti_built_try_disk(wefti_built *b, bool trains) WEFT_CHECKED;
/* For a training, with the model's configuration: refuses a disk, or a limit of its file, that the
 * tensors cannot fit by any plan. Forward passes may read tensors from a checkpoint's files. */
weft_status wefti_built_disk_room(const wefti_built *b) WEFT_CHECKED;

/* ---- search.c ---- */

/* The plan: of the job, or of a search, which exists once the graph does. NULL: none. */
const weft_plan *wefti_built_plan(const wefti_built *b);
/* Finds the plan of a job of mode auto, and of a resume. Rank 0 searches, or reads the run's
 * record; the others get its plan. The joint search also chooses the microbatches, so it runs
 * before the graph is built. Collective in a world. */
weft_status wefti_built_search(wefti_built *b) WEFT_CHECKED;
bool wefti_built_is_joint(const wefti_built *b);
/* Sends the plan of rank 0 to all, if it has another one than the job. Collective in a world.
 * `found`: whether rank 0 has one. */
weft_status wefti_built_share_plan(wefti_built *b, weft_status found) WEFT_CHECKED;
/* joint.c: the joint search of a job: `searched` and `report`. */
weft_status wefti_built_joint(wefti_built *b) WEFT_CHECKED;
/* The job's machine, or this one with rates that are assumed. *limit: bytes of a device that the
 * job sets, or this machine has; 0: the machine model's count. */
weft_status wefti_built_machine(const wefti_built *b, wefti_machine_model **out,
                                int64_t *limit) WEFT_CHECKED;

/* ---- offload.c: memory.offload: auto ---- */

/* The tiers that the job has: host memory if the devices have memory of their own, and the disk if
 * the job names its directory. out[WEFT_TIER_DEVICE] is false. */
void wefti_built_tiers(const wefti_built *b, const wefti_machine_model *machine,
                       bool out[WEFT_TIERS]);
/* Before the session is created, with its options and its graphs in their order, which get wrapped:
 * if memory.offload is auto, and the programs do not fit the memory of a device, `searched` becomes
 * a plan with entries that make them fit. Rank 0 chooses. Collective in a world. WEFT_E_NOMEM:
 * nothing fits. */
weft_status wefti_built_offload(wefti_built *b, const weft_session_options *options,
                                weft_graph *const *graphs, int32_t count) WEFT_CHECKED;

/* ---- same.c: refuse what all ranks must share and do not; collective ---- */

/* Jobs that differ between ranks in what keys.def says they share. */
weft_status wefti_built_same_job(const wefti_built *b) WEFT_CHECKED;
/* Data, once they are open. */
weft_status wefti_built_same_data(const wefti_built *b) WEFT_CHECKED;

/* ---- tokenizer.c, key.c: files that the job names; collective unless it says otherwise ---- */

/* The tokenizer of model.from, if the data are text and the job names no tokenizer. *out NULL: the
 * data open the one that the job names, or bytes. *out_ends: the tokens that end its texts. */
weft_status wefti_built_tokenizer(wefti_built *b, weft_tokenizer **out,
                                  wefti_ends *out_ends) WEFT_CHECKED;
/* Rank 0 reads the files beside the model that checkpoints hold, unless they are there: those of
 * model.from, and of the tokenizer that the job names. Not collective. */
weft_status wefti_built_read_side(wefti_built *b) WEFT_CHECKED;
/* Rank 0's files, for all ranks. */
weft_status wefti_built_share_side(wefti_built *b, weft_status status) WEFT_CHECKED;
/* Refuses bytes that the job does not ask for if the vocabulary is of another size. Otherwise the
 * model would learn tokens that no tokenizer makes. Not collective. */
weft_status wefti_built_check_bytes(const wefti_built *b) WEFT_CHECKED;
/* Reads the key of the job, after which files that it has encrypted can be read. writes: the run
 * will write checkpoints with it. */
weft_status wefti_built_take_key(wefti_built *b, bool writes) WEFT_CHECKED;

#endif
