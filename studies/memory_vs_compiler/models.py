"""The models of the study: a few blocks of models that are often trained with Keras, at usual sizes.

Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras

from studies.memory_vs_compiler import attention, images, signals, small


@dataclass(frozen=True)
class Case:
    """A model of the study.

    batch      the smallest local batch; the study also uses 2, 4 and 8 times this batch
    optimizer  the first optimizer, used at every batch
    precision  the first precision, used at every batch
    """

    build: Callable[[], Any]
    batch: int
    optimizer: str
    precision: str


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": partial(keras.optimizers.SGD, 0.01),
    "momentum": partial(keras.optimizers.SGD, 0.01, momentum=0.9),
    "adam": partial(keras.optimizers.Adam, 1e-3),
    "adamw": partial(keras.optimizers.AdamW, 1e-3),
    "rmsprop": partial(keras.optimizers.RMSprop, 1e-3),
    "adafactor": partial(keras.optimizers.Adafactor, 1e-3),
    "lion": partial(keras.optimizers.Lion, 1e-4),
}

MODELS: dict[str, Case] = {
    "resnet50": Case(images.resnet50, 8, "momentum", "mixed_bfloat16"),
    "vgg11": Case(images.vgg11, 8, "momentum", "float32"),
    "densenet": Case(images.densenet, 8, "sgd", "float32"),
    "mobilenetv2": Case(images.mobilenetv2, 8, "rmsprop", "float32"),
    "efficientnet": Case(images.efficientnet, 8, "rmsprop", "mixed_bfloat16"),
    "convnext": Case(images.convnext, 4, "adamw", "mixed_bfloat16"),
    "decoder": Case(attention.decoder, 2, "adamw", "mixed_bfloat16"),
    "decoder_tied": Case(attention.decoder_tied, 2, "adam", "mixed_bfloat16"),
    "decoder_dropout": Case(attention.decoder_dropout, 4, "adam", "float32"),
    "encoder": Case(attention.encoder, 4, "adamw", "mixed_float16"),
    "vit": Case(attention.vit, 8, "adamw", "float32"),
    "seq2seq": Case(attention.seq2seq, 4, "adafactor", "float32"),
    "lstm": Case(signals.lstm, 8, "adam", "float32"),
    "gru": Case(signals.gru, 16, "rmsprop", "mixed_float16"),
    "bidirectional": Case(signals.bidirectional, 16, "sgd", "float32"),
    "dlrm": Case(signals.dlrm, 512, "adafactor", "float32"),
    "unet": Case(images.unet, 4, "adam", "float32"),
    "resmlp_custom": Case(signals.resmlp_custom, 256, "lion", "mixed_bfloat16"),
    "conv3d": Case(images.conv3d, 4, "momentum", "float32"),
    "conv1d": Case(signals.conv1d, 16, "rmsprop", "mixed_bfloat16"),
    "two_heads": Case(images.two_heads, 8, "adam", "mixed_float16"),
    "mlp_mixer": Case(attention.mlp_mixer, 8, "lion", "float32"),
    "autoencoder": Case(images.autoencoder, 16, "adam", "mixed_bfloat16"),
    "groupnorm": Case(images.groupnorm, 8, "sgd", "mixed_float16"),
    "mixture_of_experts": Case(attention.mixture_of_experts, 4, "adam", "mixed_float16"),
    "wavenet": Case(signals.wavenet, 4, "adam", "float32"),
    "inception": Case(images.inception, 8, "momentum", "mixed_float16"),
    "siamese": Case(images.siamese, 8, "sgd", "float32"),
    "mlp": Case(signals.mlp, 512, "momentum", "float32"),
    "perceiver": Case(attention.perceiver, 4, "lion", "float32"),
    "convlstm": Case(images.convlstm, 2, "adam", "float32"),
}

SMALL: dict[str, Case] = {
    "small_vgg": Case(small.small_vgg, 16, "adam", "float32"),
    "lstm_classifier": Case(small.lstm_classifier, 16, "adam", "float32"),
    "sentiment_lstm": Case(small.sentiment_lstm, 16, "adam", "float32"),
    "neural_ratings": Case(small.neural_ratings, 16, "adam", "float32"),
    "two_towers": Case(small.two_towers, 16, "adam", "float32"),
    "text_encoder": Case(small.text_encoder, 16, "adamw", "mixed_bfloat16"),
    "vit_256": Case(small.vit_256, 16, "adamw", "mixed_bfloat16"),
    "small_vit": Case(small.small_vit, 16, "adamw", "float32"),
    "mnist_convnet": Case(small.mnist_convnet, 16, "adam", "float32"),
    "small_resnet": Case(small.small_resnet, 16, "momentum", "mixed_bfloat16"),
    "batchnorm_convnet": Case(small.batchnorm_convnet, 16, "adam", "float32"),
    "conv_autoencoder": Case(small.conv_autoencoder, 16, "adam", "float32"),
    "lstm_tagger": Case(small.lstm_tagger, 16, "rmsprop", "float32"),
    "gqa_decoder": Case(small.gqa_decoder, 16, "adamw", "mixed_bfloat16"),
    "music_decoder": Case(small.music_decoder, 16, "adam", "mixed_bfloat16"),
    "field_attention": Case(small.field_attention, 16, "adam", "float32"),
    "depthwise_net": Case(small.depthwise_net, 16, "rmsprop", "float32"),
    "pooled_convnet": Case(small.pooled_convnet, 16, "adam", "mixed_bfloat16"),
    "squeeze_net": Case(small.squeeze_net, 16, "sgd", "float32"),
    "audio_convnet": Case(small.audio_convnet, 16, "adam", "float32"),
    "char_decoder": Case(small.char_decoder, 16, "adamw", "float32"),
    "patch_encoder": Case(small.patch_encoder, 16, "adam", "mixed_bfloat16"),
    "time_series_encoder": Case(small.time_series_encoder, 16, "adam", "float32"),
    "spectrogram_vit": Case(small.spectrogram_vit, 16, "adamw", "mixed_float16"),
    "speech_encoder": Case(small.speech_encoder, 16, "adam", "mixed_bfloat16"),
    "tabular_mlp": Case(small.tabular_mlp, 16, "adam", "float32"),
    "demand_lstm": Case(small.demand_lstm, 16, "adam", "float32"),
    "matrix_factorization": Case(small.matrix_factorization, 16, "adam", "float32"),
    "wide_and_deep": Case(small.wide_and_deep, 16, "adam", "float32"),
    "keyword_gru": Case(small.keyword_gru, 16, "rmsprop", "float32"),
    "lstm_autoencoder": Case(small.lstm_autoencoder, 16, "adam", "float32"),
    "session_gru": Case(small.session_gru, 16, "adam", "float32"),
    "factorization_machine": Case(small.factorization_machine, 16, "adam", "float32"),
    "entity_lstm": Case(small.entity_lstm, 16, "adamw", "float32"),
    "ecg_convnet": Case(small.ecg_convnet, 16, "adam", "float32"),
    "letters_convnet": Case(small.letters_convnet, 16, "momentum", "float32"),
    "all_convolutional": Case(small.all_convolutional, 16, "sgd", "float32"),
}
"""Small models, compiled for TPUs at 1, 4 and 16 times their smallest batch."""
MODELS |= SMALL


def built(name: str, precision: str, optimizer: str, accumulation: int = 1, attention: str = "auto") -> Any:
    """Return the compiled model. Call it inside `abstract_variables()`, so that its weights need no memory."""
    keras.config.set_dtype_policy(precision)
    if attention == "auto":
        keras.config.enable_flash_attention()
    else:
        keras.config.disable_flash_attention()
    model, loss = MODELS[name].build()
    steps = accumulation if accumulation > 1 else None
    model.compile(optimizer=OPTIMIZERS[optimizer](gradient_accumulation_steps=steps), loss=loss)
    return model
