/* checkpoint.key: the key that encrypts a run's checkpoints, and reads encrypted ones. */
#include <string.h>

#include "train/save/save.h"

static weft_status take(wefti_training *t, bool writes) {
    const char *where = t->job->checkpoint.key;
    if (!where || !*where) return WEFT_OK;
    WEFT_REQUIRE(!writes || !*t->job->checkpoint.dir || !t->party.world ||
                     t->job->checkpoint.sliced,
                 WEFT_E_ARG,
                 "several processes cannot write one encrypted file: set checkpoint.sliced: true, "
                 "so that each writes files of its own");
    WEFT_TRY(wefti_key_read(where, &t->saving.key));
    t->saving.encrypts = true;
    return wefti_key_keep(&t->saving.key);
}

weft_status wefti_training_take_key(wefti_training *t, bool writes) {
    weft_status status = take(t, writes);
    if (status < 0) (void)wefti_prefix(status, "checkpoint.key");
    return wefti_party_agree(&t->party, status);
}

void wefti_training_wipe_key(wefti_training *t) {
    t->saving.encrypts = false;
    explicit_bzero(&t->saving.key, sizeof t->saving.key);
}
