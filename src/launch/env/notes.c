/* Variables that ask for a feature of another system which weft does not have, or has in another
 * form. If weft ignored them in silence, a user would count on the feature. */
#include "launch/env/env.h"

#include <string.h>

#include "launch/env/values.h"

#define NOTE(name, instead)                                                                        \
    { name, name " has no effect: " instead " (docs/guide/coming-from-mindspore.md)" }

/* Each with what weft does in place of it. */
static const char *const notes[][2] = {
    NOTE(
        "MS_ENABLE_RECOVERY",
        "there is no MS_ROLE; weft launch --restart starts lost ranks again, and checkpoint.dir is "
        "where a job goes on from"),
    NOTE("MS_RECOVERY_PATH",
         "there are no MS_ROLE and MS_ENABLE_RECOVERY; checkpoint.dir is where a job goes on from"),
    NOTE("GROUP_INFO_FILE", "slices tell by themselves which ranks hold the same"),
    NOTE("MS_ENABLE_GRACEFUL_EXIT",
         "name the file in checkpoint.stop_file; SIGTERM ends the run after the step too"),
    NOTE("MS_ENABLE_TFT",
         "checkpoint.on_error saves when a step fails, checkpoint.every bounds what it costs"),
    NOTE("MS_DISABLE_HEARTBEAT",
         "heartbeats stay on; MS_NODE_TIMEOUT sets how long they may be silent"),
};

/* Whether MindSpore's switches of recovery have their meaning: wefti_mindspore_recovery. */
static bool has_effect(wefti_variables v, size_t note) {
    const char *enabled = wefti_variable(v, "MS_ENABLE_RECOVERY");
    if (strcmp(notes[note][0], "MS_ENABLE_RECOVERY") != 0 &&
        strcmp(notes[note][0], "MS_RECOVERY_PATH") != 0)
        return false;
    return wefti_variable(v, "MS_ROLE") && enabled && strcmp(enabled, "1") == 0;
}

const char *wefti_launcher_note(wefti_variables variables, int number) {
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++) {
        const char *value = wefti_variable(variables, notes[i][0]);
        if (!value || strcmp(value, "0") == 0 || has_effect(variables, i)) continue;
        if (number-- == 0) return notes[i][1];
    }
    return NULL;
}
