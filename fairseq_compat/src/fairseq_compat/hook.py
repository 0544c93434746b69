"""Apply the fixes while fairseq's modules are being imported.

Every interpreter of the environment imports this module, so it uses only ``sys``; the fixes are imported together with
the modules of fairseq below.
"""

import sys

# module of fairseq -> fixes that act on it (modules of fairseq_compat.fixes)
FIXES = {
    "fairseq.dataclass.configs": ("hashable_dataclasses",),
    "fairseq.dataclass.utils": (
        "optional_types",
        "third_party_registries",
        "quiet_hydra",
        "broken_options",
        "missing_packages",
        "evaluated_options",
        "mismatched_choices",
    ),
    "fairseq_cli.hydra_train": ("hydra_help", "hydra_words", "quiet_hydra", "third_party_registries"),
    "fairseq.checkpoint_utils": (
        "unreadable_checkpoints",
        "safe_checkpoints",
        "complete_saves",
        "partial_checkpoints",
        "numbered_checkpoints",
        "best_checkpoints",
        "one_run_a_folder",
        "paused_trainings",
        "other_languages",
        "mismatched_weights",
        "missing_checkpoints",
    ),
    "fairseq.file_io": ("atomic_copies",),
    "fairseq.utils": ("empty_user_dirs", "replaced_words", "byte_order_marks", "evaluated_options"),
    # missing_metrics stays last: its should_stop_early is around the one in which paused_trainings keeps --patience
    "fairseq_cli.train": (
        "saved_stops",
        "paused_trainings",
        "missing_packages",
        "evaluated_options",
        "mismatched_choices",
        "missing_metrics",
    ),
    "fairseq.distributed.utils": ("broadcast_objects", "spawned_processes", "saved_stops"),
    "fairseq.models.distributed_fairseq_model": ("cpu_data_parallel",),
    "fairseq.options": (
        "bf16_on_gpus",
        "repeated_options",
        "unnamed_tasks",
        "dead_options",
        "unknown_architectures",
        "empty_user_dirs",
    ),
    "fairseq.trainer": (
        "cpu_autocast",
        "half_precision",
        "paused_trainings",
        "long_texts",
        "mismatched_weights",
        "validated_training_data",
    ),
    "fairseq.optim.fp16_optimizer": ("half_precision_state",),
    "fairseq.optim.amp_optimizer": ("half_precision_state",),
    "fairseq.optim.lr_scheduler.inverse_square_root_schedule": ("broken_options",),
    "fairseq.nan_detector": ("nan_gradients",),
    "fairseq.models.ema.ema": ("tied_averages",),
    "fairseq.models.hubert.hubert_asr": ("missing_options",),
    "fairseq.models.wav2vec.wav2vec2_asr": ("missing_options",),
    "fairseq.models.transformer.transformer_config": ("broken_options",),
    "fairseq.modules.transformer_layer": ("encoder_copies",),
    "fairseq.modules.sinusoidal_positional_embedding": ("defined_buffers",),
    "fairseq.modules.adaptive_input": ("defined_buffers",),
    "fairseq.modules.adaptive_softmax": ("defined_buffers",),
    "fairseq.data.data_utils": ("numpy_aliases", "locked_seeds", "last_batches", "subword_marks", "numbered_splits"),
    "fairseq.data.lm_context_window_dataset": ("context_windows",),
    "fairseq.data.iterators": ("fresh_workers", "stopped_readers", "saved_stops", "paused_trainings"),
    "fairseq.data.indexed_dataset": ("line_ends", "large_data"),
    "fairseq.file_chunker_utils": ("line_ends",),
    "fairseq.hub_utils": ("line_ends", "skipped_sentences"),
    "fairseq.models.bart.hub_interface": ("skipped_sentences", "hub_segmentations"),
    "fairseq.models.roberta.hub_interface": ("hub_segmentations",),
    "fairseq.models.roberta.alignment_utils": ("hub_segmentations",),
    "fairseq_cli.preprocess": ("line_ends", "broken_options", "text_pairs", "carried_records"),
    "fairseq_cli.interactive": (
        "line_ends",
        "shards",
        "replaced_words",
        "whole_lines",
        "subword_marks",
        "mismatched_choices",
    ),
    "fairseq_cli.score": ("line_ends", "scoring_options"),
    "fairseq.logging.progress_bar": ("continued_trackers",),
    # tools that prepare text for fairseq
    "sacremoses.cli": ("line_ends",),
    "subword_nmt.subword_nmt": ("line_ends",),
    "subword_nmt.apply_bpe": ("byte_order_marks",),
    "fairseq.data.dictionary": ("dictionary_classes", "overwritten_symbols", "byte_order_marks"),
    "fairseq.data.multilingual.multilingual_data_manager": ("byte_order_marks",),
    "fairseq.data.encoders.subword_nmt_bpe": ("bpe_vocabularies",),
    "fairseq.data.encoders.utils": ("whole_words",),
    "fairseq.tasks.masked_lm": ("whole_words", "long_texts"),
    "fairseq.tasks.multilingual_masked_lm": ("whole_words",),
    "fairseq.tasks.denoising": ("whole_words", "long_texts"),
    "fairseq.tasks.multilingual_denoising": ("whole_words",),
    "fairseq.tasks.fairseq_task": ("resumed_batches", "broken_options", "text_pairs"),
    "fairseq.tasks.sentence_prediction": ("checked_labels", "long_texts", "byte_order_marks"),
    "fairseq.tasks.sentence_ranking": ("checked_labels", "long_texts"),
    "fairseq.criterions.sentence_prediction": ("checked_labels", "regression_losses"),
    "fairseq.criterions.sentence_prediction_adapters": ("regression_losses",),
    "fairseq.criterions.label_smoothed_cross_entropy": ("ignored_prefixes",),
    "fairseq.criterions.adaptive_loss": ("adaptive_losses",),
    "fairseq.tasks.audio_finetuning": ("byte_order_marks",),
    "fairseq.tasks.translation_from_pretrained_bart": ("pretrained_bart_options",),
    "fairseq.scoring.bleu": ("empty_hypotheses", "uncompiled_bleu", "target_languages"),
    "fairseq.scoring.chrf": ("scoring_options",),
    "fairseq.tasks.translation": ("target_languages", "moses_languages", "empty_hypotheses", "numbered_splits"),
    "fairseq.data.encoders.moses_tokenizer": ("moses_languages",),
    "fairseq.scoring": ("target_languages",),
    "fairseq.models": ("unknown_architectures",),
    "fairseq.tasks": ("target_languages", "unknown_architectures", "several_folders"),
    "fairseq_cli.generate": (
        "shards",
        "scoring_options",
        "replaced_words",
        "whole_lines",
        "subword_marks",
        "fused_dictionaries",
        "mismatched_choices",
    ),
    "fairseq.sequence_generator": ("fused_dictionaries", "unequal_prefixes"),
    "fairseq.ngram_repeat_block": ("repeated_ngrams",),
    "fairseq.search": ("sampled_words",),
    "fairseq.models.transformer_align": ("alignment_layers",),
    "fairseq_cli.validate": ("shards",),
    "fairseq_cli.eval_lm": (
        "empty_evaluations",
        "subword_marks",
        "shards",
        "mismatched_choices",
        "context_windows",
        "broken_options",
    ),
    "fairseq.data.token_block_dataset": ("numpy_aliases",),
    "fairseq.data.language_pair_dataset": ("numpy_aliases",),
    "fairseq.modules.dynamic_crf_layer": ("numpy_aliases",),
}

# compiled modules of fairseq; where one is missing, the module of the same name in fairseq_compat.pure takes its place
PURE = ("fairseq.libbleu", "fairseq.libnat", "fairseq.data.data_utils_fast", "fairseq.data.token_block_utils_fast")


class FixingLoader:
    """Replace the real loader while its module executes.

    This is a separate object, because many modules may share the real loader (as pytest's assertion rewriter).
    """

    def __init__(self, loader, fixes):
        self.loader, self.fixes = loader, fixes

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        from fairseq_compat.runner import execute

        execute(module, self.loader, self.fixes)

    def get_code(self, name):
        """Return the code for ``python -m name``, which runs a command like its program, with the fixes."""
        if not name.startswith("fairseq_cli."):
            return self.loader.get_code(name)
        lines = f"import sys\nfrom {name} import *\nfrom {name} import cli_main\n"
        return compile(f"{lines}if __name__ == '__main__':\n    sys.exit(cli_main())\n", __file__, "exec")


class FairseqFinder:
    """Ask the other finders for the modules in FIXES, and wrap their loaders."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "fairseq" and sys.meta_path[0] is not cls:
            # pytest's assertion rewriter comes first otherwise, and would answer for these modules
            sys.meta_path.remove(cls)
            sys.meta_path.insert(0, cls)
        fixes = FIXES.get(name)
        if fixes is None and name not in PURE:
            return None
        for finder in list(sys.meta_path):
            if finder is cls or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if fixes and hasattr(spec.loader, "exec_module"):
                    spec.loader = FixingLoader(spec.loader, fixes)  # type: ignore[assignment]  # replaces one
                return spec
        return pure_spec(name) if name in PURE else None


def pure_spec(name):
    """Return the spec of the module in Python that replaces a compiled one."""
    from importlib.util import spec_from_file_location
    from os.path import dirname, join

    return spec_from_file_location(name, join(dirname(__file__), "pure", name.rpartition(".")[2] + ".py"))


def install():
    """Put the finder in front of the others, once."""
    if FairseqFinder not in sys.meta_path:
        sys.meta_path.insert(0, FairseqFinder)


install()
