"""Everyday questions, and two attributes that a program can score: a pirate's words and a butler's."""

from __future__ import annotations

from typing import NamedTuple


class Attribute(NamedTuple):
    """A steering instruction, and the words by which its answers are known."""

    instruction: str
    words: tuple[str, ...]


ATTRIBUTES = {
    "pirate": Attribute(
        "You are a pirate. Answer as a pirate would, with arr, matey, aye and ye.",
        (
            "arr", "arrr", "argh", "ahoy", "aye", "avast", "matey", "mateys", "ye", "yer", "me", "hearty", "hearties",
            "cap'n", "captain", "ship", "ships", "sail", "sails", "sea", "seas", "treasure", "pirate", "pirates",
            "lad", "lads", "lass", "crew", "deck", "anchor", "plunder", "booty", "rum", "tis",
            "ain't", "em", "reckon", "ol", "th", "sailor", "sailors", "blimey",
        ),
    ),
    "butler": Attribute(
        "You are a formal Victorian butler. Address the user as sir or madam and speak in a very formal way.",
        (
            "sir", "madam", "indeed", "most", "shall", "delighted", "delight", "pleasure", "humble", "gentleman",
            "gentlemen", "lady", "ladies", "good", "fine", "esteemed", "honour", "honor", "honored", "dear",
            "excellent", "certainly", "assure", "afraid", "pray", "permit", "splendid", "master", "service",
            "majesty", "lord",
        ),
    ),
}  # fmt: skip

#: Different words of the list that make an answer a full one: one in 16 tokens or so.
ENOUGH = 2

QUESTIONS = (
    "How do I make a good cup of tea?", "Why is the sky blue?", "What should I pack for a weekend hike?",
    "How does a bicycle stay upright?", "What is a good way to learn a language?", "How do plants make food?",
    "What can I cook with rice and eggs?", "How do I fall asleep faster?", "Why do cats purr?",
    "How do I remove a coffee stain?", "What makes bread rise?", "How do I write a good letter?",
    "Why do leaves change colour?", "What is a healthy breakfast?", "How do I keep my plants alive?",
    "Why does ice float on water?", "How do I plan a birthday party?", "What is the best way to save money?",
    "How do I train my dog to sit?", "Why do we dream?", "How do airplanes fly?", "What causes thunder?",
    "How do I sharpen a knife?", "What should I do when it rains?", "How do I start a small garden?",
    "Why is the sea salty?", "How do I become a better runner?", "What is a good gift for a friend?",
    "How do magnets work?", "What is the purpose of a budget?", "How do I paint a wall?", "Why do birds sing?",
    "How can I remember names better?", "What makes a good story?", "How do I clean my shoes?",
    "Why do people yawn?", "How do I choose a good book?", "What is a rainbow?", "How do I make soup?",
    "What should I look for in a used car?", "How do bees make honey?", "Why do onions make us cry?",
    "How do I tie a tie?", "What is the best time to visit the mountains?", "How do I repair a flat tyre?",
    "Why is exercise good for us?", "How do I take better photographs?", "What do owls eat?",
    "How do I learn to swim?", "Why is the moon sometimes red?", "How do I store potatoes?",
    "What is a good hobby for the winter?", "How do clouds form?", "How do I ask for a raise?",
    "What makes a team work well?", "How do I bake an apple pie?", "Why do we need sleep?",
    "How do I get rid of ants?", "What is the easiest instrument to learn?", "How do volcanoes erupt?",
    "How do I stop being late?", "What is a good game for two people?", "How do I wash a wool sweater?",
    "Why do some metals rust?", "How do I make new friends in a town?", "What does a compass show?",
    "How do I keep milk fresh?", "What is a fair way to share a cake?", "How do I build a campfire?",
    "Why do stars twinkle?", "How do I study for an exam?", "What is a good name for a dog?",
    "How do I fold a shirt?", "What should I eat before a race?", "How does a lock work?",
    "Why do dogs wag their tails?", "How do I grow tomatoes?", "What can I do on a long train ride?",
    "How do I make a paper plane?", "Why is honey good for a cough?", "How do I calm a crying baby?",
    "What makes a joke funny?", "How do I choose a mattress?", "How do fish breathe?",
    "What is the quickest way to peel garlic?", "How do I give a speech?", "Why do we shake hands?",
    "How do I keep warm in winter?", "What should a first aid kit hold?", "How do I read a map?",
    "Why do apples turn brown?", "How do I thank a neighbour?", "What is a good walk after dinner?",
    "How do I polish a table?", "Why do we celebrate birthdays?", "How do I catch a fish?",
    "What is the secret of good coffee?", "How do I find north without a compass?", "Why does soap clean?",
    "How do I make my room look larger?",
)  # fmt: skip
